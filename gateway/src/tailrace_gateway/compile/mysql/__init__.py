"""Facts of a MySQL or MariaDB about one statement: its columns as the server prepares them, where each goes (the parser, over the live catalog)."""
