"""Dropout masks inside kernels: dropout.py's hash for one tile, computed where the adapter's input is loaded."""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def keep_mask(keys, matrix, columns, drop_threshold):
    """bool [T, N]: dropout.keep_mask for one tile. keys [T] int32 hold the unsigned keys' bits."""
    place = _mix((columns + matrix * 262144).to(tl.uint32))
    return (_mix(keys.to(tl.uint32, bitcast=True)[:, None] ^ place[None, :]) >> 8) >= drop_threshold.to(tl.uint32)


@triton.jit
def load_keys(keys_ptr, start, end, BT: tl.constexpr):
    """Keys of BT tokens from `start`; tokens at or beyond `end` are masked."""
    tokens = start + tl.arange(0, BT)
    return tl.load(keys_ptr + tokens, mask=tokens < end, other=0)
