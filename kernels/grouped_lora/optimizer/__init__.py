"""AdamW over arena rows, all adapters in one launch each for squares, clip and update; moments in fp32 or in 8-bit blocks.

Enters: gradients by row. Leaves: updated rows and moments. It must not know matrices beyond the arena's shape."""
