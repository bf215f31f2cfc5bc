"""Preemption on rows: what it would cost, victims asked to leave, their GPUs reserved for the preemptor.

Enters: a snapshot, a decision. Leaves: placements that leave, reservations. It must not know who is worth preempting."""
