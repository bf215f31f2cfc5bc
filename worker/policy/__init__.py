"""Pure: job records; policies for memory, admission, packing, replica assignment, whose turn a step is, and early exit.

Enters: numbers and events. Leaves: records, and choices with their evidence. It must not import torch or know files, clocks or
processes."""
