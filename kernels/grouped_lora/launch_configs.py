"""Launch configurations: tile sizes, warps and pipeline stages of every kernel: a table for Hopper, and one for Ampere that
overrides parts of it.

Nothing is tuned at run time. Widths in R are rank classes; a kernel that would exceed shared memory at a wide class uses fewer
stages there.
"""

from dataclasses import dataclass
from functools import cache

import torch

LARGE_HEAD = 128  # kernels that hold a whole head take `<kernel>_large` above it (Gemma's heads of 256)


@dataclass(frozen=True)
class Config:
    block_n: int
    warps: int
    stages: int
    block_t: int = 64
    registers: int | None = None  # per thread, at most: with fewer, more programs share a multiprocessor


HOPPER = {
    "shrink_1": Config(64, 4, 5),
    "shrink_2": Config(128, 4, 4),
    "shrink_3": Config(128, 4, 3),
    "shrink_1_wide": Config(64, 8, 3),
    "sum_partials": Config(0, 4, 1, 16),
    "weight_gradient": Config(128, 4, 4, 32),
    "weight_gradient_wide": Config(64, 8, 2),
    "expand": Config(256, 4, 1),
    "expand_wide": Config(64, 8, 1),
    "norm": Config(128, 8, 3, 16),
    "norm_wide": Config(64, 4, 2, 16),
    "norm_backward": Config(64, 4, 3, 16),
    "norm_backward_wide": Config(32, 4, 2, 16),
    "norm_backward_bare": Config(512, 8, 1, 16),
    "rotary": Config(0, 4, 2),
    "rotary_normed": Config(0, 8, 2),
    "rotary_large": Config(0, 8, 1),
    "swiglu": Config(32, 4, 4, registers=128),
    "swiglu_wide": Config(32, 8, 2),
    "swiglu_bare": Config(128, 8, 2),
    "swiglu_backward": Config(64, 4, 3, 32),
    "swiglu_backward_wide": Config(32, 4, 1, 32),
    "swiglu_backward_bare": Config(128, 8, 2),
    "attention": Config(64, 4, 2),
    "attention_large": Config(64, 8, 1),
    "attention_backward": Config(64, 4, 1),
    "attention_backward_large": Config(64, 8, 1),
    "paged_attention": Config(0, 4, 3),
    "cross_entropy": Config(16384, 32, 1),
    "adamw": Config(2048, 4, 1),
    "adamw8": Config(1024, 4, 1),
    "nf4": Config(4096, 8, 1),
    "transpose": Config(128, 8, 1),
}
# 164 KB of shared memory instead of 227: fewer stages or narrower tiles where a stage is large.
AMPERE = HOPPER | {
    "shrink_1": Config(128, 4, 3),
    "shrink_2": Config(64, 4, 3),
    "shrink_3": Config(64, 4, 3),
    "shrink_1_wide": Config(32, 8, 3),
    "weight_gradient": Config(128, 8, 2),
    "norm": Config(256, 4, 2, 16),
    "norm_backward": Config(64, 4, 2, 32),
    "swiglu": Config(32, 4, 3, registers=128),
    "swiglu_backward": Config(32, 4, 2, 32),
    "swiglu_backward_wide": Config(32, 8, 1, 32),
}


@cache
def _major() -> int:
    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 9


def pretend(major: int) -> None:
    """Have this process use the table of compute capability `major`.x, whatever GPU is here."""
    global _pretended
    _pretended = major


_pretended: int | None = None


def config(kernel: str, rank_class: int = 1) -> Config:
    """The configuration of `kernel` on this device for a rank class: `<kernel>_wide` above rank 64 and `<kernel>_bare` without
    adapters, where the table has one."""
    table = AMPERE if (_major() if _pretended is None else _pretended) < 9 else HOPPER
    variant = f"{kernel}_bare" if rank_class == 0 else f"{kernel}_wide" if rank_class > 64 else kernel
    return table[variant] if variant in table else table[kernel]
