"""Completions: requests of tenants that an executor answers from the base that it holds, beside training.

Enters: requests that the service gives to this executor. Leaves: pieces of texts, and what to bill for them. It must not know
jobs, nor the training loop, which gives it turns."""
