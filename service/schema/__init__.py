"""The database's schema: migrations, the two service roles, row-level security. Runs at `migrate` and is checked at start.

Enters: the owner's URL and all tables. Leaves: a database at this code's revision. Must not know: requests, domain rules."""
