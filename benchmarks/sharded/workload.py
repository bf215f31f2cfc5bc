"""What every contestant trains: rows of random tokens with an answer's labels, and adapters with first weights. Knows no
contestant and no ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.llama_shapes import LlamaShape
from contract.job_config import MODULES

ADAPTERS, RANK, SCALE = 8, 16, 2.0
RATE, DECAY, CLIP = 1e-4, 0.01, 1.0
Factors = tuple[Tensor, Tensor]  # A [r, in] and B [out, r] of one matrix, or their gradients


@dataclass(frozen=True)
class Workload:
    """batch: rows of each adapter's step. tokens: of a row as a pass takes it; the second half of them predict labels."""

    batch: int
    tokens: int
    vocabulary: int

    @property
    def labels(self) -> int:
        """Of one row."""
        return self.tokens // 2

    @property
    def tokens_per_step(self) -> int:
        """Of all adapters."""
        return ADAPTERS * self.batch * self.tokens

    def rows(self, adapter: int) -> NDArray[np.int32]:
        """[batch, tokens + 1]: the last token is a label alone."""
        return np.random.default_rng([7, adapter]).integers(0, self.vocabulary, (self.batch, self.tokens + 1), dtype=np.int32)


def widths(shape: LlamaShape) -> dict[str, tuple[int, int]]:
    """(in, out) of a layer's matrices."""
    q, kv, d, f = shape.heads * shape.head_size, shape.kv_heads * shape.head_size, shape.hidden, shape.ffn
    pairs = ((d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d))
    return dict(zip(MODULES, pairs, strict=True))


def numbers_of_adapter(shape: LlamaShape) -> int:
    return shape.layers * RANK * sum(sum(pair) for pair in widths(shape).values())


def first_factors(shape: LlamaShape, adapter: int, device: torch.device) -> Iterator[Factors]:
    """Of each layer's matrices in turn, float32 numbers that bfloat16 holds exactly. B is not zero, so A has a gradient."""
    generator = torch.Generator(device).manual_seed(1000 + adapter)

    def drawn(rows: int, columns: int, scale: float) -> Tensor:
        return torch.empty(rows, columns, device=device).normal_(0, scale, generator=generator).bfloat16().float()

    for _ in range(shape.layers):
        for inside, outside in widths(shape).values():
            yield drawn(RANK, inside, inside**-0.5), drawn(outside, RANK, 0.02)
