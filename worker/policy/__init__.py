"""Pure policies: admission under the memory model, packing, replica assignment, and early exit (ALTO, ASHA).

Enters: numbers. Leaves: choices with their evidence. It must not import torch or know files, clocks or processes."""
