"""Kernels of fp8 products on CUDA: rows to e4m3 codes in one pass, and the transposed codes of a weight.

A program holds a whole row in registers, so each number is read once and written once. Inside the kernels that write the rows
this is slower (docs/NUMERICS.md has the measurements).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config
from grouped_lora.tiles import WIDEN

CODE = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
LEAST = 1e-12  # lower bound of a row's largest magnitude: a row of zeros has codes 0
_LARGEST, _LEAST = tl.constexpr(LARGEST), tl.constexpr(LEAST)


class QuantisedRows(NamedTuple):
    """codes e4m3 [T, K] and scales fp32 [T]: row t is codes[t] times scales[t]."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, rows: int, columns: int, device: torch.device) -> "QuantisedRows":
        codes = torch.empty((rows, columns), dtype=CODE, device=device)
        return cls(codes, torch.empty(rows, dtype=torch.float32, device=device))


@triton.jit
def _scales_of(largest):
    """(scale, its inverse) of rows whose largest magnitude is `largest`, both correctly rounded, as on a CPU."""
    largest = tl.maximum(largest, _LEAST)
    return tl.math.div_rn(largest, tl.zeros_like(largest) + _LARGEST), tl.math.div_rn(
        tl.zeros_like(largest) + _LARGEST, largest
    )


@triton.jit
def _code_of(x):
    """The nearest e4m3 code of x, at most 448 in magnitude; on a tie the even one."""
    if WIDEN:
        # The interpreter loses the carry into the exponent, so under it x is first rounded to a number that e4m3 has: one of 3
        # binary places, below 2^-6 a multiple of 2^-9.
        bits = x.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, rounded)
        x = tl.where(tl.abs(x) > _LARGEST, tl.where(x > 0, _LARGEST, -_LARGEST), x)
        x = tl.where(x == x, x, 480.0)  # the next number, whose code stands for NaN
    return x.to(tl.float8e4nv)


@Kernel
@triton.jit
def _quantise(x_ptr, factor_ptr, codes_ptr, scales_ptr, stride, K, FACTOR: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BK)
    own = columns < K
    x = tl.load(x_ptr + row * stride + columns, mask=own, other=0.0).to(tl.float32)
    if FACTOR:
        x *= tl.load(factor_ptr + columns, mask=own, other=0.0)
    scale, inverse = _scales_of(tl.max(tl.abs(x), 0))
    tl.store(scales_ptr + row, scale)
    tl.store(codes_ptr + row * K + columns, _code_of(x * inverse), mask=own)


@Kernel
@triton.jit
def _transpose(codes_ptr, out_ptr, N, K, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    tile = tl.load(codes_ptr + rows[:, None] * K + columns[None, :], mask=(rows < N)[:, None] & (columns < K)[None, :], other=0)
    mask = (columns < K)[:, None] & (rows < N)[None, :]
    tl.store(out_ptr + columns[:, None] * N + rows[None, :], tl.trans(tile), mask=mask)


def quantise_on_device(x: Tensor, factor: Tensor | None = None) -> QuantisedRows:
    """fp8.quantise_rows for x [T, K], columns contiguous, and factor fp32 [K]."""
    count, width = x.shape
    out = QuantisedRows.empty(count, width, x.device)
    block = triton.next_power_of_2(width)
    _quantise[(count,)](
        x, factor if factor is not None else x, out.codes, out.scales, x.stride(0), width,
        FACTOR=factor is not None, BK=block, num_warps=min(32, max(4, block // 1024)),
    )  # fmt: skip
    return out


def transposed(codes: Tensor) -> Tensor:
    """codes [N, K], contiguous, as a contiguous [K, N]."""
    rows, columns = codes.shape
    out = torch.empty((columns, rows), dtype=codes.dtype, device=codes.device)
    cfg = config("transpose")
    _transpose[(triton.cdiv(rows, cfg.block_n), triton.cdiv(columns, cfg.block_n))](
        codes.view(torch.uint8), out.view(torch.uint8), rows, columns, B=cfg.block_n, num_warps=cfg.warps
    )
    return out
