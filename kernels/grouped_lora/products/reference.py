"""Grouped LoRA in plain PyTorch: the reference that kernels are compared with, and the CPU path.

Per adapter i with tokens X_i:  S_i = s_i X_i A_i^T,  Y_i += S_i B_i^T  (Hu et al. 2021, section 4.1). Works in any float dtype,
float64 included. Every product's shape depends on one adapter alone, so an adapter's numbers have the same bits with and
without neighbours. Knows no autograd: autograd_linear.py wraps these functions.

Legend: see adapter_spans.py. `weights_RC` is the arena; B lies transposed, so that one arena row is one rank.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grouped_lora.adapter_spans import Group, Part, Span
from grouped_lora.dropout import keep_mask, threshold

Keys = NDArray[np.uint32] | None


def _stacked_a(weights_RC: Tensor, group: Group, span: Span, dtype: torch.dtype) -> Tensor:
    """The A of all parts, stacked by rows: [P * rank, K], part by part."""
    a_PRK = _a_view(weights_RC, group, span)
    return a_PRK.reshape(-1, group.in_features).to(dtype)


def _a_view(arena_RC: Tensor, group: Group, span: Span) -> Tensor:
    stride = arena_RC.stride(0)
    shape = (len(group.parts), span.rank, group.in_features)
    offset = arena_RC.storage_offset() + span.row * stride + group.a
    return arena_RC.as_strided(shape, (group.pitch, stride, 1), offset)


def _b_view(arena_RC: Tensor, part: Part, span: Span) -> Tensor:
    return arena_RC[span.row : span.row + span.rank, part.b : part.b + part.width]


def _masks(group: Group, span: Span, keys_T: Keys, like: Tensor) -> list[Tensor]:
    """Each part's dropout mask over the span's input: ones and zeros [tokens, K] in the input's dtype."""
    if keys_T is None:
        raise ValueError(f"the span at token {span.start} has dropout {span.dropout}, but there are no keys to draw it from")
    own, drop_threshold = keys_T[span.start : span.stop], threshold(span.dropout)
    return [keep_mask(own, part.matrix, group.in_features, drop_threshold).to(like.device, like.dtype) for part in group.parts]


def forward_(
    y_TN: Tensor, x_TK: Tensor, weights_RC: Tensor, group: Group, spans: Sequence[Span], keys_T: Keys = None
) -> list[Tensor]:
    """Add every adapter's product to `y_TN` in place. keys_T: dropout's keys (dropout.py), where a span has dropout.

    Returns S per span, [tokens, P * rank] with the scale folded in, for `backward_`. Rows of `y_TN` outside all spans are not
    touched.
    """
    saved = []
    for span in spans:
        x = x_TK[span.start : span.stop]
        if span.dropout:
            a_PRK = _a_view(weights_RC, group, span).to(x.dtype)
            seen = [(x * mask) @ a.t() for mask, a in zip(_masks(group, span, keys_T, x), a_PRK, strict=True)]
            s = torch.cat(seen, 1)
        else:
            s = x @ _stacked_a(weights_RC, group, span, x.dtype).t()
        s.mul_(span.kept_scale)
        y = y_TN[span.start : span.stop]
        for place, part in enumerate(group.parts):
            s_part = s[:, place * span.rank : (place + 1) * span.rank]
            y[:, part.y : part.y + part.width].addmm_(s_part, _b_view(weights_RC, part, span).to(s.dtype))
        saved.append(s)
    return saved


def backward_(
    grad_RC: Tensor,
    dx_TK: Tensor | None,
    dy_TN: Tensor,
    x_TK: Tensor,
    saved: Sequence[Tensor],
    weights_RC: Tensor,
    group: Group,
    spans: Sequence[Span],
    keys_T: Keys = None,
) -> None:
    """Add dA and dB of every adapter to `grad_RC`, and its share of dX to `dx_TK` (None: dX is not needed), in place.

    `saved` is what `forward_` returned for the same spans. Spans are added in the order given.
    """
    for span, s in zip(spans, saved, strict=True):
        x, dy = x_TK[span.start : span.stop], dy_TN[span.start : span.stop]
        ds = torch.empty_like(s)
        for place, part in enumerate(group.parts):
            ranks = slice(place * span.rank, (place + 1) * span.rank)
            dy_part = dy[:, part.y : part.y + part.width]
            torch.mm(dy_part, _b_view(weights_RC, part, span).to(dy.dtype).t(), out=ds[:, ranks])
            _accumulate_(_b_view(grad_RC, part, span), s[:, ranks].t(), dy_part)
        ds.mul_(span.kept_scale)
        da_PRK = _a_view(grad_RC, group, span)
        if span.dropout:
            parts = zip(_masks(group, span, keys_T, x), ds.split(span.rank, 1), strict=True)
            for place, (mask, ds_part) in enumerate(parts):
                if dx_TK is not None:
                    a = _a_view(weights_RC, group, span)[place].to(dy.dtype)
                    dx_TK[span.start : span.stop].add_((ds_part @ a) * mask)
                da_PRK[place].add_(ds_part.t() @ (x * mask))
            continue
        if dx_TK is not None:
            dx_TK[span.start : span.stop].addmm_(ds, _stacked_a(weights_RC, group, span, dy.dtype))
        da_PRK.add_((ds.t() @ x).view(da_PRK.shape))


def _accumulate_(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target += left @ right, where the target may be of higher precision than the factors."""
    if target.dtype == left.dtype:
        target.addmm_(left, right)
    else:
        target.add_(left @ right)
