"""Real servers for tests and gates, each started from what is installed and ended by its own handle."""
