"""Counter-based LoRA dropout: a hash of a feature's position decides whether the adapter sees it; no mask is stored.

The counter is (seed, step, sample, position, matrix, feature). The host hashes the first four into one 32-bit key per token;
the last two are hashed in where the mask is needed, in forward and again in backward: here for the plain path, in
dropout_mask.py for the kernels, with identical bits. Masks hold 0 and 1 only: the factor 1 / (1 - p) is part of the adapter's
scale. (Mixing: the finaliser of MurmurHash3, Appleby 2011, a bijection.)
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

FEATURES = 1 << 18  # of one matrix, at most; matrices are numbered across all layers, up to 2^14
LEVELS = 1 << 24  # resolution of a threshold: p in steps of 6e-8


def threshold(p: float) -> int:
    """The hash threshold that stands for drop probability p in [0, 1). Raises ValueError outside that range."""
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout is {p}; it must be at least 0 and below 1")
    return round(p * LEVELS)


def token_keys(seed: int, step: int, samples: Sequence[int], lengths: Sequence[int]) -> NDArray[np.uint32]:
    """One key per token [sum of lengths]. `samples`: each row's index in its job's batch; positions count from 0 in each
    row."""
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


def keep_mask(keys: NDArray[np.uint32], matrix: int, features: int, drop_threshold: int) -> torch.Tensor:
    """bool [T, features]: which input features one matrix's adapter sees; `drop_threshold` comes from `threshold`."""
    place = _mixed(np.arange(features, dtype=np.uint32) + np.uint32(matrix * FEATURES & 0xFFFFFFFF))
    return torch.from_numpy((_mixed(keys[:, None] ^ place[None, :]) >> np.uint32(8)) >= np.uint32(drop_threshold))
