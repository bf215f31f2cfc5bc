"""Usage accounting: tokens and GPU seconds of tenants, kept by task and month and rolled up by day; prices and quotas.

Enters: work that was reported, a tenant and a month. Leaves: amounts and what they cost."""
