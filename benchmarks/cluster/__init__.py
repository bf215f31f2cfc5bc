"""A whole cluster on one machine: `python -m benchmarks.cluster [--small]`.

Enters: nothing. Leaves: benchmarks/results/cluster-cpu.json. Its processes are real; the 1,000 nodes train nothing.
"""
