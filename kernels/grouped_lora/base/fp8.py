"""Products with a frozen weight in 8-bit floating point: e4m3 codes with one scale per output row, and activations quantised
row by row (token by token).

Micikevicius et al. 2022 (FP8 formats for deep learning), section 3; scales as torch's row-wise `_scaled_mm` takes them. The
weight is frozen, so backward forms dX alone. Its inner dimension is forward's output rows: their scales are multiplied into dY
before it is quantised, so both directions compute with the same numbers, and the codes are transposed for the pass, since the
matrix unit takes 8-bit operands with the inner dimension contiguous. On a CPU, and as the reference, products are emulated: the
codes' exact values are multiplied in the activations' dtype. Knows no layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grouped_lora.base.fp8_quantise import CODE, LARGEST, LEAST, QuantisedRows, quantise_on_device, transposed
from grouped_lora.base.frozen_product import OwnProducts, product

CAPABILITY = (8, 9)  # the first compute capability whose matrix unit multiplies e4m3
FAST = True  # partial sums stay in the matrix unit's own accumulator
STEP = 16  # both sizes of a weight are multiples of it on a GPU


def quantise_rows(x_TK: Tensor, factor_K: Tensor | None = None) -> QuantisedRows:
    """e4m3 codes of x (times `factor_K`, column by column), each row divided by its largest magnitude over 448."""
    if x_TK.is_cuda:
        return quantise_on_device(x_TK, factor_K)
    values_TK = x_TK.float() if factor_K is None else x_TK.float() * factor_K
    largest_T = values_TK.abs().amax(1).clamp_min(LEAST)
    # A tensor as the numerator: PyTorch divides a number by a tensor in two roundings.
    inverse_T = torch.full_like(largest_T, LARGEST) / largest_T
    return QuantisedRows((values_TK * inverse_T[:, None]).to(CODE), largest_T / LARGEST)


def check_sizes(shape: torch.Size, device: torch.device) -> None:
    """Raise ValueError for a weight [N, K] that no GPU product takes."""
    if device.type == "cuda" and (shape[0] % STEP or shape[1] % STEP):
        raise ValueError(
            f"a linear map of {shape[0]} by {shape[1]} has no product in fp8, which takes multiples of {STEP}; "
            "take precision bf16 or nf4"
        )


@dataclass(frozen=True)
class Fp8Weight(OwnProducts):
    """codes e4m3 [N, K], scales fp32 [N]. dtype: of what it decodes to."""

    codes: Tensor
    scales: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, weights: Sequence[Tensor]) -> "Fp8Weight":
        """Quantise weights [N_i, K] of one dtype, stacked by rows. Raises ValueError for a size that no GPU product takes."""
        parts = [quantise_rows(weight) for weight in weights]
        codes = torch.cat([part.codes.view(torch.uint8) for part in parts]).view(CODE)
        check_sizes(codes.shape, codes.device)
        return cls(codes, torch.cat([part.scales for part in parts]), weights[0].dtype)

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def dense(self) -> Tensor:
        """Decode to a new tensor [N, K]."""
        return (self.codes.float() * self.scales[:, None]).to(self.dtype)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that stores the weight."""
        yield from (self.codes, self.scales)

    def forward(self, rows: QuantisedRows, bias_N: Tensor | None = None) -> Tensor:
        """x Wᵀ (+ bias): [T, N] in the weight's dtype, summed in fp32 and rounded once."""
        if rows.codes.is_cuda:
            return self._scaled(rows, self._turned, self._scales_1N, bias_N)
        y_TN = self._emulated(rows, self.codes.t()).mul_(self.scales)
        return y_TN if bias_N is None else y_TN.add_(bias_N)

    def backward(self, rows: QuantisedRows) -> Tensor:
        """dX [T, K] of dY, which was quantised times this weight's scales."""
        if rows.codes.is_cuda:
            return self._scaled(rows, transposed(self.codes).t(), self._ones_1K, None)
        return self._emulated(rows, self.codes)

    def linear(self, x_TK: Tensor, residual_TN: Tensor | None, bias_N: Tensor | None) -> Tensor:
        y_TN = self.forward(quantise_rows(x_TK), bias_N)
        return y_TN if residual_TN is None else y_TN.add_(residual_TN)

    def linear_backward(self, dy_TN: Tensor) -> Tensor:
        return self.backward(quantise_rows(dy_TN, self.scales))

    def _scaled(self, rows: QuantisedRows, right_KN: Tensor, scales_1N: Tensor, bias_N: Tensor | None) -> Tensor:
        return torch._scaled_mm(
            rows.codes, right_KN, rows.scales[:, None], scales_1N, bias_N, out_dtype=self.dtype, use_fast_accum=FAST
        )

    # Views that every product takes: made once, since a launch waits for the host.
    @cached_property
    def _turned(self) -> Tensor:
        return self.codes.t()

    @cached_property
    def _scales_1N(self) -> Tensor:
        return self.scales[None, :]

    @cached_property
    def _ones_1K(self) -> Tensor:
        return torch.ones(1, self.codes.shape[1], device=self.codes.device)

    def _emulated(self, rows: QuantisedRows, right_KN: Tensor) -> Tensor:
        return product(rows.codes.to(self.dtype), right_KN.to(self.dtype)).mul_(rows.scales[:, None])
