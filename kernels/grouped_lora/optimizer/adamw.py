"""AdamW over the arena's active rows: per-adapter gradient clipping, decay, step and the compute copy. Gradients are read once;
parameters and moments are read and written once.

Knows rows and their adapters. Knows no matrices and no layers beyond the arena's shape [layers, rows, C]. An adapter's gradient
norm is summed from its tiles' sums of squares (gradient.py) in one order: its bits are the same alone and packed. Moments are
fp32, or 8-bit codes in blocks of 256 columns of one row (Dettmers et al., 8-bit Optimizers via Block-wise Quantization,
sections 2.1-2.2): 7 decades, where decade i holds 2^i (signed) or 2^(i+1) (unsigned) evenly spaced values, computed in closed
form from the code's own bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from grouped_lora import gradient
from grouped_lora.approximations import reciprocal, square_root
from grouped_lora.cached_launch import Kernel
from grouped_lora.gradient import Gradient
from grouped_lora.launch_configs import config

MOMENT_BLOCK = 256
ROWS = tl.constexpr(gradient.ROWS)


@dataclass(frozen=True)
class RowTable:
    """Which rows to update, and how. rows [N] int32: active arena rows, negative ones skipped (an adapter whose loss is not
    finite); adapter_of_row [N] int32: each row's adapter; firsts [A + 1] int32: where each adapter's rows start in `rows`;
    rates [A, 5] fp32: learning rate, weight decay, 1 - beta1^t, 1 - beta2^t, largest gradient norm (inf: no clip)."""

    rows: torch.Tensor
    adapter_of_row: torch.Tensor
    firsts: torch.Tensor
    rates: torch.Tensor


@Kernel
@triton.jit
def _clip(
    squares_ptr, rows_ptr, firsts_ptr, rates_ptr, norms_ptr, layer_stride, group_stride, layers, places, BN: tl.constexpr
):
    adapter = tl.program_id(0)
    row = tl.load(rows_ptr + tl.load(firsts_ptr + adapter))
    total = tl.zeros((BN,), tl.float32)
    if row >= 0:
        for layer in range(0, layers):
            base = squares_ptr + tl.cast(layer, tl.int64) * layer_stride + (row // ROWS).to(tl.int64) * group_stride
            for at in range(0, places, BN):
                index = at + tl.arange(0, BN)
                total += tl.load(base + index, mask=index < places, other=0.0)
    norm = tl.sqrt(tl.sum(total, 0))
    largest = tl.load(rates_ptr + adapter * 5 + 4)
    tl.store(norms_ptr + adapter * 2, norm)
    # As torch's clip_grad_norm_: a NaN norm makes this adapter's step NaN, and no other's.
    scale = largest / (norm + 1e-6)
    tl.store(norms_ptr + adapter * 2 + 1, tl.where(scale < 1.0, scale, tl.where(norm == norm, 1.0, norm)))


@triton.jit
def _float_of(number, less: tl.constexpr):
    """A whole number in 0 .. 2^23 - 1 minus the whole number `less`, as fp32 by its bits: a conversion has a quarter of an
    addition's rate."""
    return (number | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + less)


@triton.jit
def _decode(code, SIGNED: tl.constexpr):
    """Value in [-1, 1] of an 8-bit code. Unsigned: 0 is 0, 255 is 1, c in 1..254 lies in decade floor(log2(c + 1)) - 1."""
    c = code.to(tl.int32)
    bits = _float_of(c & 127 if SIGNED else c, -1).to(tl.int32, bitcast=True)  # of the ordinal: one more than the code
    exponent = bits >> 23  # biased: 127 for ordinal 1
    fraction = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)  # of 1 .. 2
    half = ((253 - exponent) << 23).to(tl.float32, bitcast=True)  # 2^-(e + 1): half a cell
    decade = _float_of(exponent, 133 if SIGNED else 134)
    # The last ordinal would begin a decade above 1, and stands for 1.
    value = tl.minimum(tl.exp2(decade * 3.321928094887362) * ((fraction + half) * 0.9 - 0.8), 1.0)
    if SIGNED:
        value = (value.to(tl.int32, bitcast=True) ^ ((c & 128) << 24)).to(tl.float32, bitcast=True)
        return tl.where(c == 255, 0.0, value)
    return tl.where(c == 0, 0.0, value)


@triton.jit
def _encode(x, SIGNED: tl.constexpr):
    """The code of x in [-1, 1]: nearest within its decade, of which there are 7, decade d up to 10^d for d in -6 .. 0.

    1.5 * 2^23 = 12582912 plus a small number is that number rounded, in the sum's low bits.
    """
    magnitude = tl.abs(x) if SIGNED else x
    # log10, up to 0.003 off by a parabola through the powers of two: next to an edge either decade's last cell is near.
    bits = magnitude.to(tl.int32, bitcast=True)
    fraction = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    log2 = _float_of(bits >> 23, 127) + ((2.0311 - 0.3437 * fraction) * fraction - 1.6874)
    raised = tl.minimum(tl.maximum(log2 * 0.30102999566398120 + 0.5, -5.5), 0.49) + 12582912.0  # rounded up
    count = ((raised.to(tl.int32, bitcast=True) << 23) + ((133 if SIGNED else 134) << 23)).to(tl.float32, bitcast=True)
    scaled = magnitude * tl.exp2((12582912.0 - raised) * 3.321928094887362)
    place = (scaled * (1 / 0.9) - 0.1 / 0.9) * count - 0.5
    if not SIGNED:
        place = tl.maximum(place, -0.49)  # below the first cell is that cell, not 0
    code = (place + (count + 12582911.0)).to(tl.int32, bitcast=True) & 255
    # Above halfway between the largest value of the last decade and 1.
    if SIGNED:
        code = tl.where(x < 0.0, code + 128, tl.where(magnitude > 1.0 - 0.225 / 64, 127, code))
        return tl.where(magnitude < 2.75e-7, 255, code)
    code = tl.where(magnitude > 1.0 - 0.225 / 128, 255, code)
    # A non-zero second moment is never stored as 0: the step would be divided by eps alone.
    return tl.where(magnitude == 0.0, 0, code)


@triton.jit
def _inverse(scale):
    """1 / scale less a millionth, finite for the smallest scales, too. An extreme times its hardware reciprocal may be above 1,
    and a number below -1 would get the code beyond the last negative one, which is 0's."""
    return 0.999999 / tl.maximum(scale, 1.2e-38)


@triton.jit
def _step(p, g, m, v, rates_ptr, norms_ptr, adapter, beta1, beta2, eps):
    rate = tl.load(rates_ptr + adapter * 5)
    decay = tl.load(rates_ptr + adapter * 5 + 1)
    correction1 = tl.load(rates_ptr + adapter * 5 + 2)
    correction2 = tl.load(rates_ptr + adapter * 5 + 3)
    g = g * tl.load(norms_ptr + adapter * 2 + 1)
    p = p * (1.0 - rate * decay)
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    p -= (rate / correction1) * m * reciprocal(square_root(v * (1.0 / correction2)) + eps)
    return p, m, v


@Kernel
@triton.jit
def _adamw(
    p_ptr, g_ptr, m_ptr, v_ptr, copy_ptr, rows_ptr, adapters_ptr, rates_ptr, norms_ptr, layer_stride, row_stride,
    C, beta1, beta2, eps, BN: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0)
    row = tl.load(rows_ptr + entry)
    if row < 0:
        return
    adapter = tl.load(adapters_ptr + entry)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.program_id(2).to(tl.int64) * layer_stride + row.to(tl.int64) * row_stride + columns
    mask = columns < C
    p = tl.load(p_ptr + at, mask=mask, other=0.0)
    g = tl.load(g_ptr + at, mask=mask, other=0.0)
    m = tl.load(m_ptr + at, mask=mask, other=0.0)
    v = tl.load(v_ptr + at, mask=mask, other=0.0)
    p, m, v = _step(p, g, m, v, rates_ptr, norms_ptr, adapter, beta1, beta2, eps)
    tl.store(p_ptr + at, p, mask=mask)
    tl.store(m_ptr + at, m, mask=mask)
    tl.store(v_ptr + at, v, mask=mask)
    tl.store(copy_ptr + at, p, mask=mask)


@Kernel
@triton.jit
def _adamw8(
    p_ptr, g_ptr, m_ptr, v_ptr, mscale_ptr, vscale_ptr, copy_ptr, rows_ptr, adapters_ptr, rates_ptr, norms_ptr, layer_stride,
    row_stride, C, layer_scales, row_scales, beta1, beta2, eps, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0)
    row = tl.load(rows_ptr + entry)
    if row < 0:
        return
    adapter = tl.load(adapters_ptr + entry)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    at = tl.program_id(2).to(tl.int64) * layer_stride + row.to(tl.int64) * row_stride + columns
    scale_at = tl.program_id(2).to(tl.int64) * layer_scales + row.to(tl.int64) * row_scales + blocks
    mask = columns < C
    known = blocks * BLOCK < C
    m = (
        _decode(tl.load(m_ptr + at, mask=mask, other=255), True)
        * tl.load(mscale_ptr + scale_at, mask=known, other=0.0)[:, None]
    )
    v = _decode(tl.load(v_ptr + at, mask=mask, other=0), False) * tl.load(vscale_ptr + scale_at, mask=known, other=0.0)[:, None]
    p = tl.load(p_ptr + at, mask=mask, other=0.0)
    g = tl.load(g_ptr + at, mask=mask, other=0.0)
    p, m, v = _step(p, g, m, v, rates_ptr, norms_ptr, adapter, beta1, beta2, eps)
    m = tl.where(mask, m, 0.0)
    v = tl.where(mask, v, 0.0)
    tl.store(p_ptr + at, p, mask=mask)
    tl.store(copy_ptr + at, p, mask=mask)
    m_scale = tl.max(tl.abs(m), 1)
    v_scale = tl.max(v, 1)
    tl.store(mscale_ptr + scale_at, m_scale, mask=known)
    tl.store(vscale_ptr + scale_at, v_scale, mask=known)
    tl.store(m_ptr + at, _encode(m * _inverse(m_scale)[:, None], True).to(tl.uint8), mask=mask)
    tl.store(v_ptr + at, _encode(v * _inverse(v_scale)[:, None], False).to(tl.uint8), mask=mask)


def clip_scales(squares: torch.Tensor, table: RowTable) -> torch.Tensor:
    """norms [A, 2] fp32: each adapter's global gradient norm and its clip factor, from all layers' sums of squares."""
    layers, _, places = squares.shape
    norms = torch.empty((table.rates.shape[0], 2), dtype=torch.float32, device=squares.device)
    _clip[(table.rates.shape[0],)](
        squares, table.rows, table.firsts, table.rates, norms, squares.stride(0), squares.stride(1), layers, places, BN=4096,
        num_warps=8,
    )  # fmt: skip
    return norms


def adamw(
    master: torch.Tensor,
    grad: Gradient,
    moments: tuple[torch.Tensor, ...],
    compute_copy: torch.Tensor,
    table: RowTable,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> torch.Tensor:
    """One clipped AdamW step of the table's rows; returns norms [A, 2] (gradient norm, clip factor).

    master, grad.rows [layers, rows, C] fp32 and compute_copy share their strides; grad has its squares. moments: exp_avg and
    exp_avg_sq, fp32 of that shape; or their 8-bit codes, uint8 of that shape, followed by both block scales [layers, rows,
    ceil(C / 256)] fp32.
    """
    layers, _, width = master.shape
    assert grad.squares is not None
    norms = clip_scales(grad.squares, table)
    cfg = config("adamw" if len(moments) == 2 else "adamw8")
    grid = (table.rows.shape[0], -(-width // cfg.block_n), layers)
    if len(moments) == 2:
        _adamw[grid](
            master, grad.rows, *moments, compute_copy, table.rows, table.adapter_of_row, table.rates, norms, master.stride(0),
            master.stride(1), width, *betas, eps, BN=cfg.block_n, num_warps=cfg.warps,
        )  # fmt: skip
    else:
        scales = moments[2]
        _adamw8[grid](
            master, grad.rows, *moments, compute_copy, table.rows, table.adapter_of_row, table.rates, norms, master.stride(0),
            master.stride(1), width, scales.stride(0), scales.stride(1), *betas, eps, BLOCKS=cfg.block_n // MOMENT_BLOCK,
            BLOCK=MOMENT_BLOCK, num_warps=cfg.warps,
        )  # fmt: skip
    return norms
