"""Tenants, API keys, authentication, quotas and rate limits, and the one filter that keeps tenants apart.

Enters: an Authorization header. Leaves: a Principal, and queries scoped to it. Knows nothing of what a route does."""
