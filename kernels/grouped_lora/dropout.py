"""LoRA dropout drawn from a counter: whether an adapter's input keeps a feature is a hash of where it stands, never stored.

The counter is (seed, step, sample, position, matrix, feature). Its first four make one 32-bit key a token, on the host; the
last two are hashed into it where the mask is needed, forward and again in backward: here for the plain path, in
dropout_mask.py for the kernels, to the same bit. Only 0 and 1 here: the factor 1 / (1 - p) goes into the adapter's scale.
(Mixing: the finaliser of MurmurHash3, Appleby 2011, a bijection.)
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

FEATURES = 1 << 18  # of one matrix, at most; matrices are counted through all layers, up to 2^14 of them
LEVELS = 1 << 24  # a threshold's unit: p in steps of 6e-8


def threshold(p: float) -> int:
    """What `kept` compares a hash with, for a probability p in [0, 1) to drop. Raises ValueError outside."""
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout is {p}; it must be at least 0 and below 1")
    return round(p * LEVELS)


def token_keys(seed: int, step: int, samples: Sequence[int], lengths: Sequence[int]) -> NDArray[np.uint32]:
    """One key a token [sum of lengths]: `samples` are the rows' places in their job's batch, positions count from 0 in each."""
    rows = [np.arange(length, dtype=np.uint32) for length in lengths]
    sample = np.repeat(np.asarray(samples, np.uint32), lengths)
    position = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
    key = np.full(sample.shape, seed & 0xFFFFFFFF, np.uint32)
    for part in (np.full(sample.shape, seed >> 32 & 0xFFFFFFFF, np.uint32), np.full_like(sample, step), sample, position):
        key = _mixed(key ^ _mixed(part + np.uint32(0x9E3779B9)))
    return key


def _mixed(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def keep_mask(keys: NDArray[np.uint32], matrix: int, features: int, limit: int) -> torch.Tensor:
    """bool [T, features]: what a matrix's adapter sees of its input; `limit` is a threshold."""
    place = _mixed(np.arange(features, dtype=np.uint32) + np.uint32(matrix * FEATURES & 0xFFFFFFFF))
    return torch.from_numpy((_mixed(keys[:, None] ^ place[None, :]) >> np.uint32(8)) >= np.uint32(limit))
