"""AdamW over arena rows (Loshchilov & Hutter 2019), each adapter with its own rate, decay, step and clip.

Row ranges and numbers only: knows no jobs, no model and no loss. Each adapter is one contiguous block of rows, updated by
calls whose shape is its own: bits do not depend on neighbours, and a block's four buffers stay in cache between calls. This is
the plain path's optimizer; the device trainer takes the same `RowUpdate` and runs grouped_lora/optimizer/adamw.py.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.model.arena import Arena, Slot

BETAS = (0.9, 0.999)
EPS = 1e-8
_MOST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class RowUpdate:
    """One adapter's optimizer step. `step` counts from 1; `max_grad_norm` bounds the adapter's global gradient norm."""

    slot: Slot
    learning_rate: float
    weight_decay: float
    step: int
    max_grad_norm: float

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step is {self.step}; the first update is step 1")
        for name, factor in (
            ("learning_rate", self.learning_rate / (1 - BETAS[0])),
            ("weight_decay", self.learning_rate * self.weight_decay),
            ("max_grad_norm", self.max_grad_norm),
        ):
            if not factor <= _MOST:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}: the update is beyond what float32 holds; take a lower one"
                )


def update_rows(arena: Arena, update: RowUpdate) -> Tensor:
    """Clip, step and zero the gradient of one adapter. Returns its gradient norm before clipping, a scalar on the device."""
    rows = update.slot.used
    weights, grad = arena.master[rows], arena.grad[rows]
    exp_avg, exp_avg_sq = arena.moments.read(rows)
    norm = torch.linalg.vector_norm(grad)
    grad.mul_((update.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
    weights.mul_(1 - update.learning_rate * update.weight_decay)
    exp_avg.lerp_(grad, 1 - BETAS[0])
    exp_avg_sq.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
    spread = exp_avg_sq.sqrt().div_(math.sqrt(1 - BETAS[1] ** update.step)).add_(EPS)
    weights.addcdiv_(exp_avg, spread, value=-update.learning_rate / (1 - BETAS[0] ** update.step))
    arena.moments.write(rows, exp_avg, exp_avg_sq)
    grad.zero_()
    return norm
