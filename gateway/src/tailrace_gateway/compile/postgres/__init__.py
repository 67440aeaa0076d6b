"""Facts of a live PostgreSQL about one statement: types (`describe`), what it touches (`probe`), where each column goes (`lineage`)."""
