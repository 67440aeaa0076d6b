"""Statements on PostgreSQL by libpq (psycopg's low level): text results as the server writes them, no type conversion in between."""
