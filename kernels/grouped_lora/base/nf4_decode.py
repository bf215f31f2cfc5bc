"""NF4 dequantisation in one pass on CUDA: reads codes and scales, writes the weight.

Knows the layout of the codes, not how they were made (nf4.py). Each program decodes T numbers.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config

BLOCK = 64  # numbers of one scale
SCALES_BLOCK = 256  # scales of one outer scale


@Kernel
@triton.jit
def _expand(
    codes_ptr, scales_ptr, outer_ptr, mean_ptr, levels_ptr, map_ptr, out_ptr, count,
    DOUBLE: tl.constexpr, BLOCK: tl.constexpr, SCALES_BLOCK: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """T is a multiple of BLOCK: offsets within a program are 32-bit, its start is a 64-bit scalar."""
    start = tl.cast(tl.program_id(0), tl.int64) * T
    own = tl.arange(0, T)
    seen = own < count - start
    byte = tl.load(codes_ptr + start // 2 + own // 2, mask=seen, other=0).to(tl.int32)
    unit = tl.load(levels_ptr + tl.where(own % 2 == 0, byte >> 4, byte & 15))
    block = start // BLOCK + own // BLOCK
    if DOUBLE:
        code = tl.load(scales_ptr + block, mask=seen, other=0).to(tl.int32)
        scale = tl.load(map_ptr + code) * tl.load(outer_ptr + block // SCALES_BLOCK, mask=seen, other=0.0) + tl.load(mean_ptr)
    else:
        scale = tl.load(scales_ptr + block, mask=seen, other=0.0)
    tl.store(out_ptr + start + own, unit * scale, mask=seen)


def decode_nf4(
    codes: torch.Tensor,
    scales: torch.Tensor,
    outer: torch.Tensor | None,
    mean: torch.Tensor | None,
    levels: torch.Tensor,
    map_: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Decode a matrix into contiguous `out`, with the same bits as plain PyTorch: every product and sum is rounded separately.

    codes uint8 [ceil(n / 2)]; scales fp32 [blocks], or uint8 with `outer` fp32 and `mean` (a scalar); levels fp32 [16]; map_
    fp32 [256].
    """
    if not out.is_contiguous():
        raise ValueError(f"NF4 numbers are written to a contiguous tensor, not to strides {out.stride()}")
    launch = config("nf4")
    double = outer is not None
    _expand[(triton.cdiv(out.numel(), launch.block_n),)](
        codes, scales, outer if double else scales, mean if double else scales, levels, map_, out, out.numel(),
        DOUBLE=double, BLOCK=BLOCK, SCALES_BLOCK=SCALES_BLOCK, T=launch.block_n, num_warps=launch.warps, enable_fp_fusion=False,
    )  # fmt: skip
