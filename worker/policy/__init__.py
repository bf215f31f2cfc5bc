"""Pure: job records; policies for admission under the memory model, packing, replica assignment and early exit (ALTO, ASHA).

Enters: numbers and events. Leaves: records, and choices with their evidence. It must not import torch or know files, clocks or
processes."""
