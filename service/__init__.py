"""The service: FastAPI, Postgres, Redis, CP-SAT. Its programs are api, queue and reconcile.

Enters: requests of tenants, reports of workers, wake-ups. Leaves: rows, answers, desired states. It must not import torch or
the worker."""
