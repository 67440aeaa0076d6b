"""The differential gate: the same calls to the data plane and to Python alone, and everything that must be equal compared."""
