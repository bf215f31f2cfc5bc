"""The product with a frozen weight, in a form whose bits do not depend on how many rows ride along.

A BLAS cuts a long inner dimension into pieces of its own choosing, and chooses by the number of rows: the same row then sums
in another order beside neighbours than alone (docs/NUMERICS.md has the measurement). On CPU the cut is therefore made here, by
the inner size alone. A GPU's product is left whole.
"""

import torch
from torch import Tensor

MAX_INNER = 512  # half of the shortest inner size at which a cut by row count was seen, rounded up to a whole piece


def product(x_TK: Tensor, w_KN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x W (+ bias): [T, N]. `w_KN` may be any view, transposed or not."""
    inner = x_TK.shape[1]
    if x_TK.device.type != "cpu" or inner <= MAX_INNER:
        return x_TK @ w_KN if bias_N is None else torch.addmm(bias_N, x_TK, w_KN)
    y_TN: Tensor | None = None
    pieces = -(-inner // MAX_INNER)
    size = -(-inner // (16 * pieces)) * 16
    for start in range(0, inner, size):
        x, w = x_TK[:, start : start + size], w_KN[start : start + size]
        if y_TN is not None:
            y_TN.addmm_(x, w)
        else:
            y_TN = x @ w if bias_N is None else torch.addmm(bias_N, x, w)
    assert y_TN is not None
    return y_TN
