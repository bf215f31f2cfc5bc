"""Products with the frozen base: row-count-independent products, and NF4 codes with their decoding.

Enters: frozen weights. Leaves: products whose bits do not depend on the number of rows. It must not know adapters.
"""
