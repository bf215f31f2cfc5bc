"""One ugly packed step for the kernel tests: token ranges, ranks, scattered arena rows, poisoned everything else."""

import os

import torch
from grouped_lora.span import Span
from grouped_lora.work import work_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter widens bf16 before it multiplies, so there it would say nothing that fp32 does not.
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
RANKS = (24, 16, 8, 64, 32)
# The kernels' own rounding: exact fp32 products against float64, and one rounding to bf16 of inputs, results and of what
# enters a matrix unit.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3}

if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("on a machine without CUDA these tests need TRITON_INTERPRET=1, set before triton is imported")


class Case:
    """`lengths` tokens per adapter, ranks in turn from RANKS, arena rows of `width` with gaps of NaN between the adapters."""

    def __init__(self, lengths: tuple[int, ...], width: int, dtype: torch.dtype, tail: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(len(lengths) * 1000 + width)
        self.dtype = dtype
        self.spans: list[Span] = []
        at, row = 0, 3
        for index, length in enumerate(lengths):
            rank = RANKS[index % len(RANKS)]
            self.spans.append(Span(at, at + length, row, rank, 0.5 + index))
            at += length
            row += rank + 5
        self.total = at + tail
        self.weights = torch.full((row, width), float("nan"))
        for span in self.spans:
            self.weights[span.row : span.row + span.rank] = self.normal(span.rank, width) / width**0.5
        self.weights = self.weights.to(DEVICE, dtype)
        self.table = work_table(self.spans, self.total, DEVICE)

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


def own(x: torch.Tensor, span: Span, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The span's own tokens, in `dtype`."""
    return x[span.start : span.stop].to(dtype)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Relative error of the whole tensor within the dtype's tolerance; NaN never passes."""
    if want.numel() == 0:
        return
    error = ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e} above {TOLERANCE[dtype]:.0e}"
