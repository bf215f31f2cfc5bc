"""Webhooks: a transactional outbox of messages, delivered by couriers, signed as Standard Webhooks.

Enters: changes of tasks. Leaves: signed POSTs through the SSRF guard. Never delays the change itself."""
