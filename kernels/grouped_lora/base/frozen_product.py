"""Row-count-independent product with a frozen weight: a row's bits do not depend on how many rows share the call.

A BLAS picks its summation order by the number of rows (docs/NUMERICS.md has the measurements): it splits a long inner dimension
in its own way, and runs other code for few rows and for the last rows of an uneven number. On CPU this module therefore splits
the inner dimension itself, by its size alone, and callers pad to `whole_rows` rows. On a GPU the product is one call. MKL's
bits also depend on where operands lie in memory, unless the process was started with MKL_CBWR=AUTO,STRICT.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

ROW_STEP = 48  # rows for each thread: a multiple of every row tile that was observed (4, 6, 12, 24 and 48)
MIN_STEPS = 2  # with fewer steps the BLAS runs other code, without tiles
MAX_INNER = 384  # a split by row count was observed from 432 on with AVX2 code, from 864 on with AVX-512 code


class Coded(Protocol):
    """A weight [N, K] stored in fewer bits than the dtype it is read in."""

    @property
    def shape(self) -> torch.Size: ...

    def dense(self) -> Tensor:
        """Decode to a new tensor [N, K]."""
        ...


class OwnProducts(ABC):
    """A coded weight [N, K] whose products do not read it as a dense matrix."""

    @abstractmethod
    def linear(self, x_TK: Tensor, residual_TN: Tensor | None, bias_N: Tensor | None) -> Tensor:
        """x Wᵀ (+ bias, + residual): [T, N]."""

    @abstractmethod
    def linear_backward(self, dy_TN: Tensor) -> Tensor:
        """dX = dY W: [T, K]."""


Frozen = Tensor | Coded


def dense(weight: Frozen) -> Tensor:
    """The weight as products read it. A quantised weight is decoded at each call: once per pass and direction, for all
    adapters."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def frozen_linear(x_TK: Tensor, weight: Frozen, residual_TN: Tensor | None = None, bias_N: Tensor | None = None) -> Tensor:
    """x Wᵀ (+ residual, + bias): [T, N]."""
    if isinstance(weight, OwnProducts):
        return weight.linear(x_TK, residual_TN, bias_N)
    return product(x_TK, dense(weight).t(), residual_TN, bias_N)


def frozen_linear_backward(dy_TN: Tensor, weight: Frozen) -> Tensor:
    """dX = dY W: [T, K]."""
    return weight.linear_backward(dy_TN) if isinstance(weight, OwnProducts) else product(dy_TN, dense(weight))


def whole_rows(rows: int) -> int:
    """`rows` padded up to a number of rows at which no row's bits depend on the count."""
    step = ROW_STEP * torch.get_num_threads()
    return max(MIN_STEPS, -(-rows // step)) * step


def product(x_TK: Tensor, w_KN: Tensor, residual_TN: Tensor | None = None, bias_N: Tensor | None = None) -> Tensor:
    """x W (+ residual, + bias): [T, N]. `w_KN` may be any view, transposed or not."""
    start = residual_TN if residual_TN is not None else bias_N
    width = _slice_width(x_TK)
    x, w = x_TK[:, :width], w_KN[:width]
    y_TN = x @ w if start is None else torch.addmm(start, x, w)
    for at in range(width, x_TK.shape[1], width):
        y_TN.addmm_(x_TK[:, at : at + width], w_KN[at : at + width])
    if residual_TN is not None and bias_N is not None:
        y_TN.add_(bias_N)
    return y_TN


def _slice_width(x_TK: Tensor) -> int:
    """Columns of one slice: equal slices in multiples of 16, at most MAX_INNER wide."""
    inner = x_TK.shape[1]
    if x_TK.device.type != "cpu" or inner <= MAX_INNER:
        return inner
    slices = -(-inner // MAX_INNER)
    return -(-inner // (16 * slices)) * 16
