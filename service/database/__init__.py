"""Postgres: the engine and sessions, the schema's version, roles, row-level security, prepared statements, the async reader.

Enters: statements and rows. Leaves: transactions, and notifications after a commit. It must not know any table by name; each
room declares its own models. Postgres is the only truth."""
