"""Benchmarks: each file is one command that checks correctness first and writes one result file."""

import os

from contract.processes import reproducibility

reproducibility.turn_on(os.environ)  # before a benchmark imports torch: CPU products then run as they do in executors
