"""Cross entropy of one chunk of logits with its gradient in place, whether each label has the largest logit, and per-adapter
sums in a fixed order.

One program reads one label token's logits twice, the second time from cache. Knows no head weights.
"""

import torch
import triton
import triton.language as tl

from grouped_lora.block.nonlinearities import soft_capped
from grouped_lora.cached_launch import Kernel
from grouped_lora.launch_configs import config

_LANES = 1024


@triton.jit
def _logits(ptr, columns, stop, cap, CAPPED: tl.constexpr):
    """Logits of a row in fp32, soft-capped where the family does so; -inf from column `stop` on."""
    x = tl.load(ptr + columns, mask=columns < stop, other=float("-inf")).to(tl.float32)
    if CAPPED:
        x = tl.where(columns < stop, soft_capped(x, cap), float("-inf"))
    return x


@Kernel
@triton.jit
def _cross_entropy(
    logits_ptr, labels_ptr, loss_weights_ptr, logp_ptr, hits_ptr, stride, V, cap, GRADIENT: tl.constexpr, CAPPED: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    base = logits_ptr + row * stride
    peak = tl.full((BV,), float("-inf"), tl.float32)
    total = tl.zeros((BV,), tl.float32)
    for start in range(0, V, BV):
        columns = start + tl.arange(0, BV)
        x = _logits(base, columns, V, cap, CAPPED)
        higher = tl.maximum(peak, x)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - safe) + tl.exp(x - safe)
        peak = higher
    top = tl.max(peak, 0)
    safe_top = tl.where(top == float("-inf"), 0.0, top)
    normaliser = safe_top + tl.log(tl.sum(total * tl.exp(peak - safe_top), 0))
    own = tl.load(base + label).to(tl.float32)
    if CAPPED:
        own = soft_capped(own, cap)
    logp = own - normaliser
    tl.store(logp_ptr + row, logp)
    # bf16 logits often tie: torch.argmax takes the lowest column, so where the label's is a largest one, those before it are
    # read again. A maximum that kept its column would take more registers than the first loop has.
    before = tl.full((BV,), float("-inf"), tl.float32)
    stop = tl.where(own >= top, label, 0).to(tl.int32)
    for start in range(0, stop, BV):
        columns = start + tl.arange(0, BV)
        before = tl.maximum(before, _logits(base, columns, stop, cap, CAPPED))
    hit = (own >= top) & (tl.max(before, 0) < own) & (logp == logp)
    tl.store(hits_ptr + row, tl.where(hit, 1.0, 0.0))
    if GRADIENT:
        loss_weight = tl.load(loss_weights_ptr + row)
        tl.debug_barrier()
        for start in range(0, V, BV):
            columns = start + tl.arange(0, BV)
            x = _logits(base, columns, V, cap, CAPPED)
            dx = loss_weight * (tl.exp(x - normaliser) - tl.where(columns == label, 1.0, 0.0))
            if CAPPED:
                dx *= 1.0 - (x / cap) * (x / cap)
            tl.store(base + columns, dx, mask=columns < V)


@Kernel
@triton.jit
def _span_sums(values_ptr, bounds_ptr, sums_ptr, LANES: tl.constexpr):
    span = tl.program_id(0)
    start = tl.load(bounds_ptr + span)
    end = tl.load(bounds_ptr + span + 1)
    total = tl.zeros((LANES,), tl.float32)
    for at in range(start, end, LANES):
        index = at + tl.arange(0, LANES)
        total += tl.load(values_ptr + index, mask=index < end, other=0.0)
    tl.store(sums_ptr + span, tl.sum(total, 0))


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    loss_weights: torch.Tensor | None,
    logp: torch.Tensor | None = None,
    hits: torch.Tensor | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logp, hits), each [N] fp32: the log-probability of each label under logits [N, V], and 1 where the label is their
    argmax, of equal logits the lowest column, else 0. With `loss_weights` [N] fp32, logits become
    loss_weight · (softmax - onehot), the gradient of the sum of -loss_weight · logp. With a cap, logits are first replaced by
    cap tanh(logit / cap), and the gradient is of those before it.

    A row's NaN stays in its row, and is no hit.
    """
    logp = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) if logp is None else logp
    hits = torch.empty_like(logp) if hits is None else hits
    if logits.shape[0] == 0:
        return logp, hits
    cfg = config("cross_entropy")
    _cross_entropy[(logits.shape[0],)](
        logits, labels, loss_weights if loss_weights is not None else logp, logp, hits, logits.stride(0),
        logits.shape[1], 1.0 if cap is None else cap,
        GRADIENT=loss_weights is not None, CAPPED=cap is not None,
        BV=min(cfg.block_n, triton.next_power_of_2(logits.shape[1])), num_warps=cfg.warps, num_stages=cfg.stages,
    )  # fmt: skip
    return logp, hits


def span_sums(values: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Sums [S] fp32 of values[bounds[i] : bounds[i + 1]]; the summation order depends on the segment's length alone."""
    sums = torch.empty(bounds.shape[0] - 1, dtype=torch.float32, device=values.device)
    if sums.shape[0]:
        _span_sums[(sums.shape[0],)](values, bounds, sums, LANES=_LANES, num_warps=4)
    return sums
