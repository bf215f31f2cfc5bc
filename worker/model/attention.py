"""Causal attention over the flat axis, each sequence by itself. Knows no weights, no positions and no jobs.

On CPU one call per sequence: a masked call over all of them took 18 times as long, and its bits depended on the neighbours.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, bounds: tuple[int, ...], window: int | None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v within each sequence [bounds[i], bounds[i + 1]): [T, H, D].

    G key heads serve H query heads (H a multiple of G). A token sees itself and, with a window, the window - 1 before it.
    Rows beyond the last bound belong to nobody and come out as zeros.
    """
    tail = q_THD.shape[0] - bounds[-1]
    lengths = [stop - start for start, stop in pairwise(bounds)] + [tail]
    outs = [
        _sequence(q, k, v, window)
        for q, k, v in zip(q_THD.split(lengths), k_TGD.split(lengths), v_TGD.split(lengths), strict=True)
    ][:-1]
    outs.append(torch.zeros(tail, *q_THD.shape[1:], dtype=q_THD.dtype, device=q_THD.device))
    return torch.cat(outs)


def _sequence(q_LHD: Tensor, k_LGD: Tensor, v_LGD: Tensor, window: int | None) -> Tensor:
    length = q_LHD.shape[0]
    masked = window is not None and length > window
    mask = _window_mask(length, window, q_LHD.device) if masked and window is not None else None
    y_HLD = F.scaled_dot_product_attention(
        q_LHD.transpose(0, 1).unsqueeze(0),
        k_LGD.transpose(0, 1).unsqueeze(0),
        v_LGD.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q_LHD.shape[1] != k_LGD.shape[1],
    )
    return y_HLD.squeeze(0).transpose(0, 1)


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    places = torch.arange(length, device=device)
    behind = places[:, None] - places[None, :]
    return (behind >= 0) & (behind < window)
