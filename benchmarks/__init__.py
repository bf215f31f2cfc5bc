"""Benchmarks: each file is one command that checks correctness first and writes one result file."""
