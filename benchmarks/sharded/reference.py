"""What contestants must agree with: one adapter after another and row by row, in plain PyTorch in one process, in higher
precision. Shares no layer with any contestant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sharded.drawn_model import EPS, DrawnModel
from benchmarks.sharded.workload import SCALE, Factors, Workload, first_factors
from contract.job_config import MODULES
from worker.model.base_weight_reader import EMBEDDING, HEAD, NORM, PATHS


@dataclass(frozen=True)
class AdapterOutcome:
    """loss: mean nats per label of the adapter's batch. gradients: of each layer's matrices in turn."""

    loss: float
    gradients: list[Factors]


def truth(model: DrawnModel, work: Workload, adapters: Sequence[int]) -> dict[int, AdapterOutcome]:
    """Of these adapters, in the model's dtype."""
    tensors = dict(model.state_dict())
    return {adapter: _of_adapter(model, tensors, work, adapter) for adapter in adapters}


def errors(found: AdapterOutcome, wanted: AdapterOutcome) -> tuple[float, float]:
    """Relative errors of the loss, and the worst of a matrix's dA or dB by their norms; infinite where one is no number."""
    worst = 0.0
    for ours, true in zip(found.gradients, wanted.gradients, strict=True):
        for got, want in zip(ours, true, strict=True):
            if got.shape != want.shape:
                raise ValueError(f"a gradient of shape {tuple(got.shape)} is compared with one of {tuple(want.shape)}")
            worst = max(worst, _finite(((got.to(want.dtype) - want).norm() / want.norm()).item()))
    return _finite(abs(found.loss - wanted.loss) / abs(wanted.loss)), worst


def _finite(error: float) -> float:
    return error if error == error else float("inf")


def _of_adapter(model: DrawnModel, tensors: Mapping[str, Tensor], work: Workload, adapter: int) -> AdapterOutcome:
    pairs = [
        tuple(part.to(model.dtype).requires_grad_() for part in pair)
        for pair in first_factors(model.shape, adapter, model.device)
    ]
    rows = torch.from_numpy(work.rows(adapter)).long().to(model.device)
    total = torch.stack([_row_loss(model, tensors, work, row, pairs) for row in rows]).sum() / (work.batch * work.labels)
    grads = torch.autograd.grad(total, [part for pair in pairs for part in pair])
    return AdapterOutcome(total.item(), list(zip(grads[::2], grads[1::2], strict=True)))


def _row_loss(
    model: DrawnModel, tensors: Mapping[str, Tensor], work: Workload, row: Tensor, pairs: list[tuple[Tensor, ...]]
) -> Tensor:
    """The summed loss of one row's labels."""
    x, size = tensors[EMBEDDING][row[:-1]], model.shape.head_size
    cos, sin = model.rotary(work.tokens)
    for layer in range(model.shape.layers):
        own: dict[str, tuple[Tensor, ...]] = dict(
            zip(MODULES, pairs[layer * len(MODULES) : (layer + 1) * len(MODULES)], strict=True)
        )
        prefix = f"model.layers.{layer}"

        def linear(h: Tensor, module: str, prefix: str = prefix, own: dict[str, tuple[Tensor, ...]] = own) -> Tensor:
            (a, b), path = own[module], f"{prefix}.{PATHS[module]}"
            y = h @ tensors[f"{path}.weight"].t() + SCALE * (h @ a.t()) @ b.t()
            return y + tensors[f"{path}.bias"] if f"{path}.bias" in tensors else y

        h = _normed(x, tensors[f"{prefix}.input_layernorm.weight"])
        q, k, v = (linear(h, module).unflatten(1, (-1, size)) for module in ("q_proj", "k_proj", "v_proj"))
        x = x + linear(_attended(_rotated(q, cos, sin), _rotated(k, cos, sin), v), "o_proj")
        h = _normed(x, tensors[f"{prefix}.post_attention_layernorm.weight"])
        x = x + linear(F.silu(linear(h, "gate_proj")) * linear(h, "up_proj"), "down_proj")
    last = slice(work.tokens - work.labels, work.tokens)
    logits = _normed(x[last], tensors[NORM]) @ tensors[HEAD].t()
    return F.cross_entropy(logits, row[1:][last], reduction="sum")


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS) * weight


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, [T, H D], of q [T, H, D] and fewer heads of k and v."""
    group, later = q.shape[1] // k.shape[1], torch.ones(q.shape[0], q.shape[0], dtype=torch.bool, device=q.device).triu(1)
    k, v = (part.repeat_interleave(group, 1) for part in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[2] ** -0.5
    return torch.einsum("hts,shd->thd", scores.masked_fill(later, float("-inf")).softmax(2), v).flatten(1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
