"""Checks of problems and plans, in words.

Enters: a problem, starts. Leaves: sentences about what is wrong. It must not know how plans are made."""
