"""Plain values that are read and counted in one way everywhere.

Enters: numbers, texts. Leaves: shares as whole numbers, values of JSON, URLs of Redis. It must not know specs and messages."""
