"""Statements on SQLite by apsw, on threads of their own."""
