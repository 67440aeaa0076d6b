"""`kubectl tailrace`: the command line for what stands in a cluster. Everything goes through kubectl, with its user's rights and nothing else."""
