"""Facts of a SQLite file about one statement: its columns, what it touches (the authorizer), where each column goes (`lineage`)."""
