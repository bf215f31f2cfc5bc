"""The local stack behind `motet up`, `motet demo` and `motet doctor`.

Enters: JSON lines of `python -m deploy.devstack`. Leaves: a running stack, and what is wrong with one. It
must not import the stack's code."""
