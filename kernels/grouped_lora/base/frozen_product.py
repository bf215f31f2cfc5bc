"""The product with a frozen weight, in a form whose bits do not depend on how many rows ride along.

A BLAS chooses how to sum a row by the number of rows (docs/NUMERICS.md has the measurements): it cuts a long inner dimension
into pieces of its own choosing, and treats few rows, and the last rows of an uneven number, in another way than the rest. So on
CPU the cut is made here, by the inner size alone, and callers fill up their rows to a `whole_rows` number. A GPU's product is
left whole. Where operands lie in memory matters to MKL unless the process was started with MKL_CBWR=AUTO,STRICT.
"""

from typing import Protocol

import torch
from torch import Tensor

ROW_STEP = 48  # rows for each thread: a multiple of every row tile that was seen (4, 6, 12, 24 and 48)
MIN_STEPS = 2  # below it other code runs, without tiles
MAX_INNER = 384  # a cut by row count was seen from 432 on with AVX2 code, from 864 on with AVX-512 code


class Coded(Protocol):
    """A weight [N, K] that is kept in fewer bits than it is read in."""

    @property
    def shape(self) -> torch.Size: ...

    def dense(self) -> Tensor:
        """[N, K], made anew."""
        ...


Frozen = Tensor | Coded


def dense(weight: Frozen) -> Tensor:
    """The weight as products read it. A coded one is decoded at each call: once a pass and direction, for all adapters."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def whole_rows(rows: int) -> int:
    """The number of rows to fill `rows` rows up to, so that no row's bits depend on how many there are."""
    step = ROW_STEP * torch.get_num_threads()
    return max(MIN_STEPS, -(-rows // step)) * step


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
