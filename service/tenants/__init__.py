"""Tenants, API keys, rate limits, coalesced requests, and the one filter that keeps tenants apart.

Enters: an API key. Leaves: a Principal, and queries scoped to it. Knows nothing of what a route does."""
