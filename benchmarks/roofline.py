"""Roofline of the adapters' products: the least bytes they must move beside the base, and so their minimum overhead.

Counted per pass from shapes alone: every row of the compute copy once forward and once backward, every gradient row once, S and
dS, and the activations that a sum over features or tokens must read again because no kernel has them in registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.llama_shapes import LlamaShape
from benchmarks.result_file import median_ms

COPIED_BYTES = 2 << 30  # many times the largest cache


@cache
def copy_bytes_per_s() -> float:
    """Bandwidth of a device-to-device copy on this GPU, bytes read plus bytes written."""
    source = torch.randint(0, 256, (COPIED_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / (median_ms(lambda: target.copy_(source), 20)[0] / 1e3)


@dataclass(frozen=True)
class Floor:
    """Bytes of one forward and backward pass."""

    weights: int
    gradients: int
    ranks: int
    activations: int

    @property
    def bytes(self) -> int:
        return self.weights + self.gradients + self.ranks + self.activations

    def ms(self, bytes_per_s: float) -> float:
        return self.bytes / bytes_per_s * 1e3


def adapter_floor(shape: LlamaShape, ranks: Sequence[int], tokens: int) -> Floor:
    """bf16 activations, compute copy and S; fp32 gradients. The adapters share `tokens` evenly."""
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    columns = 3 * shape.hidden + q + 2 * kv + q + shape.hidden + 2 * shape.hidden + 2 * shape.ffn + shape.ffn + shape.hidden
    rows = sum(ranks)
    # S and dS of seven matrices, written and read.
    narrow = 2 * 7 * 2 * 2 * tokens * rows // max(len(ranks), 1)
    # Read again: forward h, attended, h_mid for S; backward dx twice, dgu and dqkv for dS; and the same without dgu, plus h,
    # attended and h_mid, for dA and dB. SwiGLU's own kernels have the rest in registers.
    wide = 2 * tokens * (2 * shape.hidden + q + 2 * shape.hidden + 2 * shape.ffn + q + 2 * kv)
    wide += 2 * tokens * (2 * shape.hidden + q + 2 * kv + 2 * shape.hidden + q)
    layers = shape.layers
    return Floor(layers * 2 * 2 * rows * columns, layers * 4 * rows * columns, layers * narrow, layers * wide)
