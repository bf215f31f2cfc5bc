"""What Prometheus reads: the API's own measurements, and the state of queue, scheduler and fleet from rows.

Enters: a scrape. Leaves: text. It must not name tenants."""
