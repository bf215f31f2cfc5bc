"""Merges on nodes: leases, what a node is told of them, and the files that it reports.

Enters: heartbeats, reports. Leaves: work for nodes, rows of merged models. It must not know who asked, nor tensors."""
