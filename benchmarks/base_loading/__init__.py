"""How long a base that several GPUs share takes to load from files that the host has in memory: `python -m
benchmarks.base_loading`."""
