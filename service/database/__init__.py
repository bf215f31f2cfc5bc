"""Postgres: the engine and sessions, prepared statements, timeouts, the async reader.

Enters: statements and rows. Leaves: transactions, and callbacks after a commit. Knows no table by name; each domain package
declares its own models. Postgres is the only truth."""
