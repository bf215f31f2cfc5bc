"""Whether early exit finds the adapter that full training finds (ALTO figures 10, 15, 16): `python -m benchmarks.quality`."""
