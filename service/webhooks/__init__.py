"""Webhooks: messages written in the transaction that they tell of, delivered by couriers, signed by Standard Webhooks.

Enters: changes of tasks. Leaves: signed POSTs through the outbound guard. It must not hold up the change itself."""
