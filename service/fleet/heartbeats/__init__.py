"""Heartbeats of nodes: what each renews, acknowledges and releases, in few statements, since a large fleet sends many.

Enters: heartbeats. Leaves: leases, and the desired version. It must not know HTTP, nor who places tasks."""
