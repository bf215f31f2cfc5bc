"""The adapters' gradient, and beside it the sums of squares from which the optimizer takes each adapter's norm to clip by.

A program that writes a tile of an adapter's gradient writes the sum of the tile's squares too, so that the optimizer need not
read the gradient once more. Knows no kernels.
"""

from dataclasses import dataclass

from torch import Tensor

NEAR = 64  # ranks whose rows kernels address by 32 bits from the first
WIDEST = 2**31 // NEAR  # columns of an arena that they can address so
ROWS, COLUMNS = 8, 16  # an adapter begins at a multiple of ROWS rows, a matrix and a tile of it at one of COLUMNS columns


@dataclass(frozen=True)
class Gradient:
    """rows: fp32 [R, C] of one layer, or [layers, R, C] of all.

    squares: fp32 [R / ROWS, C / COLUMNS] of one layer, or [layers, ...] of all. The entry at an adapter's first row and at a
    tile's first column is the sum of the squares of all that its program wrote. A pass writes all such entries of its
    adapters; the others are zero. None: not wanted."""

    rows: Tensor
    squares: Tensor | None = None

    def layer(self, index: int) -> "Gradient":
        return Gradient(self.rows[index], self.squares[index] if self.squares is not None else None)
