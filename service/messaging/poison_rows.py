"""Poison rows: those whose attempts break off, or end the process that makes them, so no outcome is recorded. Knows no tables.

A claim counts its attempt as unrecorded before the attempt is made, and an outcome resets the count, so a crash keeps it. A row
with unrecorded attempts is tried beside no other such row, so that those in flight beside a poison row are not failed with it.
"""

MOST_UNRECORDED = 3  # attempts in a row; then the row is failed
GIVEN_UP = f"given up: the last {MOST_UNRECORDED} attempts each ended the process that made them, or could not be recorded"
