"""Work that no request waits for: the queue and its worker, the reconciler, garbage collection, wake-ups to nodes.

Enters: hints from Valkey and a timer. Leaves: the same domain actions that requests call. A hint carries no truth: each job
finds its work in Postgres, so a lost hint makes things later and loses nothing."""
