"""The service: FastAPI, Postgres, Redis, CP-SAT. Never imports torch."""
