"""The one table of launch configurations: tile sizes, warps and pipeline stages per kernel for Hopper and Ampere.

Nothing is tuned at run time. Widths in R are rank classes; a kernel that would exceed shared memory at a wide class takes fewer
stages there.
"""

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Config:
    block_n: int
    warps: int
    stages: int
    block_t: int = 64


HOPPER = {
    "shrink": Config(128, 4, 3),
    "shrink_wide": Config(64, 8, 3),
    "outer": Config(128, 8, 3),
    "outer_wide": Config(64, 8, 2),
    "expand": Config(128, 4, 2),
    "norm": Config(256, 4, 2, 16),
    "norm_backward": Config(256, 8, 2, 16),
    "rotary": Config(0, 4, 1),
    "swiglu": Config(64, 4, 2),
    "swiglu_wide": Config(64, 8, 2),
    "swiglu_backward": Config(64, 8, 2),
    "swiglu_backward_wide": Config(32, 8, 1),
    "attention": Config(64, 4, 2),
    "attention_backward": Config(64, 4, 1),
    "cross_entropy": Config(8192, 16, 1),
    "adamw": Config(2048, 8, 1),
}
# 164 KB of shared memory instead of 227: one stage fewer where a stage is large.
AMPERE = HOPPER | {
    "shrink": Config(64, 4, 3),
    "shrink_wide": Config(32, 8, 3),
    "swiglu": Config(64, 4, 2),
    "swiglu_backward": Config(32, 4, 2),
}


@cache
def _configs() -> dict[str, Config]:
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9:
        return AMPERE
    return HOPPER


def config(kernel: str, max_rank: int = 0) -> Config:
    """The configuration of `kernel` on this device for a rank class; `<kernel>_wide` is taken above rank 64 where
    there is one."""
    table = _configs()
    wide = kernel + "_wide"
    return table[wide] if max_rank > 64 and wide in table else table[kernel]
