"""What a key may call, told to its holder: an OpenAPI document and a catalog, from the tables that calls are served from. Pure."""
