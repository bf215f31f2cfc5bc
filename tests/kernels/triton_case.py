"""One ugly packed step for the kernel tests: token ranges, ranks, scattered arena rows, poisoned everything else."""

import os
from collections.abc import Callable

import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.dropout import keep_mask, threshold, token_keys
from grouped_lora.gradient import ROWS, Gradient
from grouped_lora.optimizer.adamw import RowTable
from grouped_lora.work_table import work_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter widens bf16 before it multiplies, so there it would say nothing that fp32 does not.
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
RANKS = (24, 16, 8, 64, 32)
# Exact fp32 products against float64; in bf16 no worse than plain PyTorch in bf16 by more than this factor.
TOLERANCE_FP32, FACTOR_BF16 = 3e-6, 1.5

if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("on a machine without CUDA these tests need TRITON_INTERPRET=1, set before triton is imported")


class Case:
    """`lengths` tokens per adapter, ranks in turn from `ranks`, arena rows of `width` with gaps of NaN between the adapters.

    dropout: of every second adapter, from the first on. aligned: each adapter begins at a multiple of so many rows.
    """

    def __init__(
        self,
        lengths: tuple[int, ...],
        width: int,
        dtype: torch.dtype,
        tail: int = 0,
        dropout: float = 0.0,
        ranks: tuple[int, ...] = RANKS,
        aligned: int = 1,
    ) -> None:
        self.generator = torch.Generator().manual_seed(len(lengths) * 1000 + width)
        self.dtype = dtype
        self.spans: list[Span] = []
        at, row = 0, 3
        for index, length in enumerate(lengths):
            rank, row = ranks[index % len(ranks)], -(-row // aligned) * aligned
            self.spans.append(Span(at, at + length, row, rank, 0.5 + index, 0.0 if index % 2 else dropout))
            at += length
            row += rank + 5
        self.total = at + tail
        self.weights = torch.full((row, width), float("nan"))
        for span in self.spans:
            self.weights[span.row : span.row + span.rank] = self.normal(span.rank, width) / width**0.5
        self.weights = self.weights.to(DEVICE, dtype)
        self.keys = token_keys(7, 3, range(1), [self.total]) if dropout else None
        self.table = work_table(self.spans, self.total, DEVICE, keys=self.keys)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def tokens(self, features: int) -> torch.Tensor:
        """[T, features] of standard normals."""
        return self.normal(self.total, features).to(DEVICE, self.dtype)

    def shrunk(self, mats: int) -> torch.Tensor:
        """An S [T, mats, RMAX] whose ranks beyond each adapter's own are NaN."""
        s = torch.full((self.total, mats, self.table.max_rank), float("nan"))
        for span in self.spans:
            s[span.start : span.stop, :, : span.rank] = self.normal(span.stop - span.start, mats, span.rank)
        return s.to(DEVICE, self.dtype)

    def rows(self, span: Span) -> torch.Tensor:
        return self.weights[span.row : span.row + span.rank]

    def seen(self, span: Span, matrix: int, features: int, dtype: torch.dtype) -> torch.Tensor:
        """What an adapter's matrix sees of its input, 0 or 1 [tokens, features]."""
        if not span.dropout:
            return torch.ones(span.stop - span.start, features, dtype=dtype, device=DEVICE)
        assert self.keys is not None
        mask = keep_mask(self.keys[span.start : span.stop], matrix, features, threshold(span.dropout))
        return mask.to(DEVICE, dtype)


def rows_of(spans: list[Span], rates: list[list[float]]) -> RowTable:
    """The rows that AdamW updates of these adapters, each with its own rates."""
    rows = [row for s in spans for row in range(s.row, s.row + s.rank)]
    owner = [index for index, s in enumerate(spans) for _ in range(s.rank)]
    firsts = [sum(s.rank for s in spans[:i]) for i in range(len(spans) + 1)]
    return RowTable(
        *(torch.tensor(part, dtype=torch.int32, device=DEVICE) for part in (rows, owner, firsts)),
        torch.tensor(rates, device=DEVICE),
    )


def with_squares(rows: torch.Tensor, spans: list[Span]) -> Gradient:
    """The gradient `rows` [layers, rows, C] of all layers, with the sums of squares as passes leave them, each in one place."""
    squares = torch.zeros(rows.shape[0], -(-rows.shape[1] // ROWS), 1, device=rows.device)
    for span in spans:
        squares[:, span.row // ROWS, 0] = rows[:, span.row : span.row + span.rank].square().sum((1, 2))
    return Gradient(rows, squares)


def own(x: torch.Tensor, span: Span, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The span's own tokens, in `dtype`."""
    return x[span.start : span.stop].to(dtype)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error of the whole tensor."""
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


def close(got: torch.Tensor, compute: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype) -> None:
    """`compute` is the plain PyTorch of it in any precision: in float64 the truth, in bf16 what the kernel may lose. NaN never
    passes."""
    want = compute(torch.float64)
    if want.numel() == 0:
        return
    allowed = TOLERANCE_FP32
    if dtype == torch.bfloat16:
        allowed = max(FACTOR_BF16 * error(compute(dtype), want), 2**-9)  # at least the rounding of the result itself
    found = error(got, want)
    assert found <= allowed, f"relative error {found:.2e} above {allowed:.2e}"
