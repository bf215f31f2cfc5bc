"""Data sets: uploaded as JSONL, checked row by row, stored once by sha256, shown as a model would read them.

Enters: multipart uploads. Leaves: immutable files, row errors with line and path, previews. It must not know tasks' states."""
