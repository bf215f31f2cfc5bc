"""Plain values that are read and counted in one way everywhere.

Enters: numbers. Leaves: shares of them as whole numbers. It must not know specs and messages."""
