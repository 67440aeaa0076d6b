"""The gateway: resources in, plans out; serves every call by itself when asked to."""
