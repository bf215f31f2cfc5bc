"""Simulates the real scheduler on a fake clock and a fake fleet: workloads, policies to compare with, and results."""
