"""The audit log: who did what, one entry for each request that wrote something or read an adapter.

Enters: a request and its transaction. Leaves: entries that are never changed. Knows no routes by name."""
