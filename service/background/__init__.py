"""Background work: the queue and its worker, the reconciler, garbage collection, wake-ups to nodes.

Enters: wake-ups from Valkey and a timer. Leaves: the same domain actions that requests call. A wake-up carries no data: each
job finds its work in Postgres, so a lost wake-up delays work and loses nothing."""
