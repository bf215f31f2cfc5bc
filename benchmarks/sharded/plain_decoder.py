"""The rivals' model: a frozen decoder in PyTorch with batched LoRA on its seven linear maps, whole or a rank's part of it.

q, k, v and gate, up are one product each, attention is SDPA's, the head computes label tokens alone: as in ours. Products of E
adapters of equal rank over equally many tokens are batched (`bmm`). Knows no adapters' weights, and of ranks only what is
passed as `enter` and `leave`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.sharded.adapter_bank import AdapterBank, GroupFactors
from benchmarks.sharded.drawn_model import EPS, DrawnModel
from benchmarks.sharded.workload import RANK, SCALE
from worker.model.arena_layout import GROUPS
from worker.model.base_weight_reader import EMBEDDING, HEAD, NORM

CHUNK_LABELS = 512  # logits of one chunk at a vocabulary of 152,064: 0.3 GB in float32
Crossing = Callable[[Tensor], Tensor]  # into or out of what tensor parallelism splits


def as_it_is(x: Tensor) -> Tensor:
    return x


class PlainLayer(nn.Module):
    """`factors` are set by PlainModel: plain tensors, which FSDP does not see."""

    def __init__(
        self, model: DrawnModel, index: int, recompute: bool, part: tuple[int, int], enter: Crossing, leave: Crossing
    ) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = map(_frozen, model.norms(index))
        self.w_qkv, self.w_gate_up = (_frozen(_rows(model, index, GROUPS[group], part)) for group in ("qkv", "gate_up"))
        self.b_qkv = _frozen(_rows(model, index, GROUPS["qkv"], part, "bias")) if model.shape.biased else None
        self.w_o, self.w_down = (
            _frozen(model.layer(index, module).chunk(part[1], 1)[part[0]].contiguous()) for module in ("o_proj", "down_proj")
        )
        self.head_size, self.recompute, self.enter, self.leave = model.shape.head_size, recompute, enter, leave
        self.factors: dict[str, GroupFactors] = {}
        self.rotary: tuple[Tensor, Tensor]

    def forward(self, x_RTK: Tensor) -> Tensor:
        if not self.recompute:
            return self._run(x_RTK)
        found: Tensor = checkpoint(self._run, x_RTK, use_reentrant=False, preserve_rng_state=False)
        return found

    def _run(self, x: Tensor) -> Tensor:
        h = self.enter(F.rms_norm(x, x.shape[-1:], self.norm_attention, EPS))
        q, k, v = (part.view(*x.shape[:2], -1, self.head_size) for part in self._linear(h, self.w_qkv, self.b_qkv, "qkv"))
        q, k, v = (part.transpose(1, 2) for part in (_rotated(q, *self.rotary), _rotated(k, *self.rotary), v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        x = x + self.leave(self._linear(attended, self.w_o, None, "o")[0]).view_as(x)
        h = self.enter(F.rms_norm(x, x.shape[-1:], self.norm_mlp, EPS))
        gate, up = self._linear(h, self.w_gate_up, None, "gate_up")
        return x + self.leave(self._linear(F.silu(gate) * up, self.w_down, None, "down")[0]).view_as(x)

    def _linear(self, h: Tensor, weight: Tensor, bias: Tensor | None, group: str) -> list[Tensor]:
        """Of each matrix [E, tokens of an adapter, N]."""
        a, bs = self.factors[group]
        h = h.reshape(a.shape[0], -1, h.shape[-1])
        parts = F.linear(h, weight, bias).split([b.shape[2] for b in bs], 2)
        s = torch.bmm(h, a.transpose(1, 2)).split(RANK, 2)
        return [torch.baddbmm(y, own, b, alpha=SCALE) for y, own, b in zip(parts, s, bs, strict=True)]


class PlainModel(nn.Module):
    """layers are made one by one by `make_layer`, which may shard each before the next is drawn."""

    def __init__(
        self,
        model: DrawnModel,
        recompute: bool,
        shard: Callable[[int, PlainLayer], object],
        part: tuple[int, int] = (0, 1),
        enter: Crossing = as_it_is,
        leave: Crossing = as_it_is,
    ) -> None:
        """shard: called with each layer and its index as soon as it is made. part: (rank, world) of tensor parallelism."""
        super().__init__()
        tensors = model.state_dict()
        self.embedding, self.norm, self.head = (_frozen(tensors[name]) for name in (EMBEDDING, NORM, HEAD))
        self.layers, self.enter, self.model = nn.ModuleList(), enter, model
        for index in range(model.shape.layers):
            layer = PlainLayer(model, index, recompute, part, enter, leave)
            shard(index, layer)
            self.layers.append(layer)

    def attach(self, bank: AdapterBank, tokens: int) -> None:
        """Read these adapters from now on, in rows of so many tokens."""
        rotary = tuple(table.unsqueeze(1) for table in self.model.rotary(tokens))
        for layer, factors in zip(self.layers, bank.layers, strict=True):
            layer.factors, layer.rotary = factors, rotary  # type: ignore[assignment]

    def forward(self, tokens_RT: Tensor, targets_RL: Tensor, weights_RL: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """(the weighted sum of losses, -log p [rows, L]) of these rows' labels, which end each row; all rows pass the
        layers."""
        x = F.embedding(tokens_RT, self.embedding)
        for layer in self.layers:
            x = layer(x)
        h = F.rms_norm(x[:, x.shape[1] - targets_RL.shape[1] :], x.shape[-1:], self.norm, EPS)
        picked, targets = self.enter(h)[rows].flatten(0, 1), targets_RL[rows]
        total, nll = _HeadLoss.apply(picked, self.head, targets.flatten(), weights_RL[rows].flatten())
        return total, nll.view_as(targets)


class _HeadLoss(torch.autograd.Function):
    """The head is frozen, so its forward computes the hidden states' gradient too, a chunk of labels at a time."""

    @staticmethod
    def forward(ctx: Any, h_NK: Tensor, head: Tensor, targets_N: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
        nll, dh = torch.empty_like(weights_N), torch.empty_like(h_NK)
        for start in range(0, len(h_NK), CHUNK_LABELS):
            part = slice(start, start + CHUNK_LABELS)
            targets = targets_N[part].unsqueeze(1)
            logp = (h_NK[part] @ head.t()).float().log_softmax(1)
            nll[part] = -logp.gather(1, targets).squeeze(1)
            difference = logp.exp_().scatter_add_(1, targets, -torch.ones_like(targets, dtype=logp.dtype))
            dh[part] = difference.mul_(weights_N[part].unsqueeze(1)).to(h_NK.dtype) @ head
        ctx.save_for_backward(dh)
        ctx.mark_non_differentiable(nll)
        return (nll * weights_N).sum(), nll

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (dh,) = ctx.saved_tensors
        return dh * dtotal.to(dh.dtype), None, None, None


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _rows(model: DrawnModel, index: int, modules: tuple[str, ...], part: tuple[int, int], kind: str = "weight") -> Tensor:
    """These matrices' output rows, or a rank's part of each one's, joined."""
    return torch.cat([model.layer(index, module, kind).chunk(part[1])[part[0]] for module in modules])


def _rotated(x_RTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x_RTHD.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
