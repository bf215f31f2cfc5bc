"""Data sets: uploaded as JSONL, checked row by row, stored once by sha256, previewed as a model would read them.

Enters: multipart uploads. Leaves: immutable files, row errors with line and path, previews. Knows no task states."""
