"""Products with the frozen base: row-count-independent products, NF4 codes with their decoding, and fp8 products.

Enters: frozen weights. Leaves: products whose bits do not depend on the number of rows. It must not know adapters.
"""
