"""Background work: the queue's worker, the reconciler, garbage collection, retention.

Enters: wake-ups from Valkey and a timer. Leaves: the same domain actions that requests call. A wake-up carries no data: each
job finds its work in Postgres, so a lost wake-up delays work and loses nothing."""
