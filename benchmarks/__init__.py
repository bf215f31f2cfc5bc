"""Benchmarks: each file is one command that checks correctness first and writes one result file."""

import os

from contract.processes import reproducibility
from worker.pinned_memory import allocate_by_threads

# Before a benchmark imports torch: products on a CPU, and memory that is pinned, are then as in executors.
reproducibility.turn_on(os.environ)
allocate_by_threads(os.environ)
