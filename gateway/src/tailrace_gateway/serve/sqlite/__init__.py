"""Statements on SQLite by the standard library's driver, on threads of their own."""
