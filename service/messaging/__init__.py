"""Wakes other processes: the Redis queue, wake-ups of nodes, plan requests, and a circuit breaker for an absent Redis;
and the loop of couriers, which claim due rows, work them off and note their progress.

Enters: ids, after a commit. Leaves: wake-ups, which may be lost (Postgres has the work). Must not know: what the work is."""
