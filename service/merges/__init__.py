"""Merged models: a base with an adapter added to its weights, asked for by a tenant, made by a node, kept for a while.

Enters: requests; rows that wait for a node. Leaves: merges assigned to nodes, files to download. It must not know tensors."""
