"""What Python serves besides queries. Routers get the caller's key and tables from the request's scope."""
