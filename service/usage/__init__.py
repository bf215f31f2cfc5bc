"""Usage accounting: tokens and GPU seconds of tenants, derived from rows at each request, and quotas.

Enters: a tenant and a month. Leaves: amounts by task. Knows no prices."""
