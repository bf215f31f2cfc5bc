"""What a contestant is, and what it must agree with: a layer of plain PyTorch in float32. Knows no implementation."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.layer_cell import MODULES, Factors, LayerCell


@dataclass(frozen=True)
class Outcome:
    """The layer's output and dX [N, D] of the cell's tokens; each adapter's dA and dB."""

    out: Tensor
    dx: Tensor
    gradients: Sequence[Factors]


class Contestant(ABC):
    """note: what of it is not as in the others, or not as its authors ship it."""

    note: str = ""

    @abstractmethod
    def run(self) -> None:
        """One forward and backward; launches only, and waits for nothing."""

    def settle(self) -> None:
        """The first run, which compiles, and may choose what fits the chip."""
        self.run()

    @abstractmethod
    def outcome(self) -> Outcome:
        """What the last run computed."""


def compare(found: Outcome, want: Outcome) -> dict[str, float]:
    """Relative errors of norms: of the output, of dX, and the worst of all adapters' dA and dB."""
    worst = {"da": 0.0, "db": 0.0}
    for ours, truth in zip(found.gradients, want.gradients, strict=True):
        for module in MODULES:
            for name, got, expected in zip(worst, ours[module], truth[module], strict=True):
                worst[name] = max(worst[name], _error(got, expected))
    return {"output": _error(found.out, want.out), "dx": _error(found.dx, want.dx), **(worst if want.gradients else {})}


def agrees(errors: dict[str, float], tolerance: float) -> bool:
    """NaN never agrees."""
    return all(error <= tolerance for error in errors.values())


def _error(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape:
        raise ValueError(f"a result of shape {tuple(got.shape)} is compared with one of {tuple(want.shape)}")
    error = ((got.float() - want).norm() / want.norm()).item()
    return error if error == error else float("inf")


def truth(cell: LayerCell, adapted: bool = True) -> Outcome:
    """The layer in float32 by autograd, adapter by adapter and row by row."""
    x = cell.x.float().requires_grad_()
    factors = [{m: (a.float().requires_grad_(), b.float().requires_grad_()) for m, (a, b) in f.items()} for f in cell.factors]
    out = _layer(cell, x, factors if adapted else [])
    leaves = [leaf for own in factors for module in MODULES for leaf in own[module]] if adapted else []
    dx, *grads = torch.autograd.grad(out, [x, *leaves], cell.dy.float())
    pairs = iter(zip(grads[::2], grads[1::2], strict=True))
    gradients: list[Factors] = [{module: next(pairs) for module in MODULES} for _ in factors] if adapted else []
    return Outcome(out.detach(), dx, gradients)


def _layer(cell: LayerCell, x: Tensor, factors: Sequence[Factors]) -> Tensor:
    dims, w, matrices = cell.fused.stack.dims, cell.weights, cell.matrices()

    def linear(h: Tensor, module: str) -> Tensor:
        y = h @ matrices[module].float().t()
        parts = [
            y[start:stop] + span.scale * (h[start:stop] @ own[module][0].t()) @ own[module][1].t()
            for (start, stop), span, own in zip(cell.ranges, cell.spans, factors, strict=False)
        ]
        return torch.cat(parts) if parts else y

    def norm(h: Tensor, weight: Tensor) -> Tensor:
        return h * torch.rsqrt(h.square().mean(1, keepdim=True) + dims.eps) * weight.float()

    h = norm(x, w.norm_attention)
    attended = _attended(cell, *(linear(h, module) for module in ("q_proj", "k_proj", "v_proj")))
    x = x + linear(attended, "o_proj")
    h = norm(x, w.norm_mlp)
    return x + linear(F.silu(linear(h, "gate_proj")) * linear(h, "up_proj"), "down_proj")


def _attended(cell: LayerCell, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention [N, Hq D] within each row, q and k rotated."""
    dims = cell.fused.stack.dims
    cos, sin = (table.float() for table in cell.fused.stack.rotaries[0])
    done = []
    for start, stop in cell.flat.sequences():
        heads = [part[start:stop].unflatten(1, (-1, dims.shape.head_size)).transpose(0, 1) for part in (q, k, v)]
        heads[:2] = [_rotated(part, cos[: stop - start], sin[: stop - start]) for part in heads[:2]]
        query, key, value = (part[None] for part in heads)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=dims.shape.scale, enable_gqa=True)
        done.append(out[0].transpose(0, 1).flatten(1))
    return torch.cat(done)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
