"""A task's rows: files fetched and cached, rows as tokens, the held-out split, the order in which a job reads them.

Enters: JSONL objects and a tokenizer. Leaves: token sequences. It must not know models or devices."""
