"""Prometheus metrics: the API processes' own, and those of queue, scheduler and fleet from rows. Also the health probes.

Enters: a scrape. Leaves: text. Never names tenants."""
