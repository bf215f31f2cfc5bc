"""What a placement needs before its jobs can be scheduled: its base, rows as tokens, checkpoints; and before a search's next
round, its configurations.

Enters: a placement under its lease. Leaves: the base loaded, its data, its checkpoints. It must not know the training loop."""
