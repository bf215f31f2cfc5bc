"""Prometheus metrics: the API processes' own, and those of queue, scheduler and fleet from rows.

Enters: a scrape. Leaves: text. Never names tenants."""
