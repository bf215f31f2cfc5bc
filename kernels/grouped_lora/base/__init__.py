"""Products with the frozen base: row-count-independent products, and NF4 codes with their decoding.

Enters: frozen weights. Leaves: the same bits however many rows ride along. It must not know adapters."""
