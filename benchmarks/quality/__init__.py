"""Does early exit find the adapter that full training finds (ALTO figures 10, 15, 16): `python -m benchmarks.quality`."""
