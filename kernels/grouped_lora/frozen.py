"""The product with a frozen weight, in a form whose bits do not depend on how many rows ride along.

A BLAS cuts a long inner dimension into pieces of its own choosing, and chooses by the number of rows: the same row then sums
in another order beside neighbours than alone (docs/NUMERICS.md has the measurement). On CPU the cut is therefore made here, by
the inner size alone. A GPU's product is left whole.
"""

import torch
from torch import Tensor

MAX_INNER = 512  # a cut by row count was seen from an inner size of 864 on, and never up to 768


def product(x_TK: Tensor, w_KN: Tensor, residual_TN: Tensor | None = None, bias_N: Tensor | None = None) -> Tensor:
    """x W (+ residual, + bias): [T, N]. `w_KN` may be any view, transposed or not."""
    start = residual_TN if residual_TN is not None else bias_N
    width = _width(x_TK)
    x, w = x_TK[:, :width], w_KN[:width]
    y_TN = x @ w if start is None else torch.addmm(start, x, w)
    for at in range(width, x_TK.shape[1], width):
        y_TN.addmm_(x_TK[:, at : at + width], w_KN[at : at + width])
    if residual_TN is not None and bias_N is not None:
        y_TN.add_(bias_N)
    return y_TN


def _width(x_TK: Tensor) -> int:
    """Columns of one piece: even pieces in multiples of 16, none above MAX_INNER."""
    inner = x_TK.shape[1]
    if x_TK.device.type != "cpu" or inner <= MAX_INNER:
        return inner
    pieces = -(-inner // MAX_INNER)
    return -(-inner // (16 * pieces)) * 16
