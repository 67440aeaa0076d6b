"""What Tailrace's parts say to each other: resources, plans, runs, error codes. Depends on no other part."""
