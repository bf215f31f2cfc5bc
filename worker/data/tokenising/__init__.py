"""Rows of a file as tokens: read here, or in a process beside the executor's, its child.

Enters: a JSONL file, a tokenizer, a task's objective. Leaves: a token stream in a folder. It must not know caches, leases or
splits."""
