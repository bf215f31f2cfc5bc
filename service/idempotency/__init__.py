"""Idempotency keys: the FastAPI dependencies that claim the key of a request, and the store of answers.

Enters: a request's Idempotency-Key and body. Leaves: a claim, or the answer that an earlier request got. It must not know
what the request does."""
