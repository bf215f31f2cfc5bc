"""What tenants used: tokens and device seconds, derived from rows when asked.

Enters: a tenant and a month. Leaves: amounts by task. It must not decide what they cost."""
