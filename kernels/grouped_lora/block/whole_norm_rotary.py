"""Norms of q and of k over all heads at once (OLMo 2), fused with rotary embedding; forward and backward.

Works in place on q and k of qkv[T, (Hq + 2 Hkv) · D], to which the adapters' part is already added; backward on its gradient.
A program holds one token's q or k, since its mean square needs every number before any is turned. Legend: D head size, H = D /
2 (rotate-half pairs d and d + H); cos, sin [positions, H].
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from grouped_lora.cached_launch import Kernel

WARPS_OF = 1024  # numbers of a row that one warp takes, eight warps at most


class _Operands(NamedTuple):
    """qkv or its gradient, q and k from before the norm, the norms' weights, the tables."""

    qkv_ptr: Any
    raw_ptr: Any
    qn_ptr: Any
    kn_ptr: Any
    cos_ptr: Any
    sin_ptr: Any
    pos_ptr: Any


@triton.jit
def _row(p, HQ: tl.constexpr, HKV: tl.constexpr, H: tl.constexpr, BHEADS: tl.constexpr, BH: tl.constexpr):
    """Of this program's token, q (part 0) or k (1): where the lower halves of its heads lie in qkv, in raw and in the norm's
    weight, their mask, how many numbers are normed, cos and sin."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    heads = tl.where(part == 0, HQ, HKV)
    head = tl.arange(0, BHEADS)[:, None]
    half = tl.arange(0, BH)[None, :]
    at = head * 2 * H + half
    place = part * HQ * 2 * H + at
    row = p.qkv_ptr + token * ((HQ + 2 * HKV) * 2 * H) + place
    raw = p.raw_ptr + token * ((HQ + HKV) * 2 * H) + place
    norm = (p.qn_ptr if part == 0 else p.kn_ptr) + at
    angles = tl.load(p.pos_ptr + token).to(tl.int64) * H + half
    cos = tl.load(p.cos_ptr + angles, mask=half < H, other=1.0)
    sin = tl.load(p.sin_ptr + angles, mask=half < H, other=0.0)
    return row, raw, norm, (head < heads) & (half < H), heads * 2 * H, cos, sin


@Kernel
@triton.jit
def _forward(
    qkv_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, H: tl.constexpr, BHEADS: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    operands = _Operands(qkv_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr)
    row, raw, norm, mask, width, cos, sin = _row(operands, HQ, HKV, H, BHEADS, BH)
    raw_low = tl.load(row, mask=mask, other=0.0)
    raw_high = tl.load(row + H, mask=mask, other=0.0)
    tl.store(raw, raw_low, mask=mask)
    tl.store(raw + H, raw_high, mask=mask)
    low = raw_low.to(tl.float32)
    high = raw_high.to(tl.float32)
    rstd = 1.0 / tl.sqrt((tl.sum(low * low) + tl.sum(high * high)) / width + eps)
    low *= rstd * tl.load(norm, mask=mask, other=0.0).to(tl.float32)
    high *= rstd * tl.load(norm + H, mask=mask, other=0.0).to(tl.float32)
    tl.store(row, low * cos - high * sin, mask=mask)
    tl.store(row + H, high * cos + low * sin, mask=mask)


@Kernel
@triton.jit
def _backward(
    dqkv_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, H: tl.constexpr, BHEADS: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    operands = _Operands(dqkv_ptr, raw_ptr, qn_ptr, kn_ptr, cos_ptr, sin_ptr, pos_ptr)
    row, raw, norm, mask, width, cos, sin = _row(operands, HQ, HKV, H, BHEADS, BH)
    low = tl.load(row, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(row + H, mask=mask, other=0.0).to(tl.float32)
    turned = (low * cos + high * sin) * tl.load(norm, mask=mask, other=0.0).to(tl.float32)
    high = (high * cos - low * sin) * tl.load(norm + H, mask=mask, other=0.0).to(tl.float32)
    low = turned
    x_low = tl.load(raw, mask=mask, other=0.0).to(tl.float32)
    x_high = tl.load(raw + H, mask=mask, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt((tl.sum(x_low * x_low) + tl.sum(x_high * x_high)) / width + eps)
    back = (tl.sum(low * x_low) + tl.sum(high * x_high)) * rstd * rstd * rstd / width
    tl.store(row, low * rstd - x_low * back, mask=mask)
    tl.store(row + H, high * rstd - x_high * back, mask=mask)


def whole_norm_rotary(
    qkv: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    heads: tuple[int, int],
) -> torch.Tensor:
    """In place on qkv [T, (Hq + 2 Hkv) D]: norm q and k with these weights ([Hq D], [Hkv D]), rotate them by the angles of
    `positions` [T] int. Returns q and k from before ([T, (Hq + Hkv) D], for backward)."""
    raw = torch.empty((qkv.shape[0], sum(heads) * 2 * cos.shape[1]), dtype=qkv.dtype, device=qkv.device)
    _launch(_forward, qkv, raw, norms, eps, cos, sin, positions, heads)
    return raw


def whole_norm_rotary_backward(
    dqkv: torch.Tensor,
    raw: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    heads: tuple[int, int],
) -> torch.Tensor:
    """In place on dqkv [T, (Hq + 2 Hkv) D]: rotate the gradients of q and k back, and pass them through the norms. raw: what
    `whole_norm_rotary` returned."""
    _launch(_backward, dqkv, raw, norms, eps, cos, sin, positions, heads)
    return dqkv


def _launch(
    kernel: Kernel,
    qkv: torch.Tensor,
    raw: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor],
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    heads: tuple[int, int],
) -> None:
    half = cos.shape[1]
    tile = triton.next_power_of_2(max(heads)), triton.next_power_of_2(half)
    kernel[(qkv.shape[0], 2)](
        qkv, raw, *norms, cos, sin, positions, eps, HQ=heads[0], HKV=heads[1], H=half, BHEADS=tile[0], BH=tile[1],
        num_warps=min(8, max(1, 2 * tile[0] * tile[1] // WARPS_OF)),
    )  # fmt: skip
