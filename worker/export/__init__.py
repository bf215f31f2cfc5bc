"""Merged models: a base with an adapter added to its weights, as a folder that transformers and vLLM load by themselves.

Enters: folders of a base and of an adapter. Leaves: files. It must not know training, executors' loops or arenas' rows."""
