"""Correctness gate of all kernel benchmarks: losses and gradients of a small mixed step against float64, beside bf16
PyTorch."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from grouped_lora.base.fp8 import Fp8Weight
from torch import Tensor

from benchmarks.llama_shapes import RANKS, LlamaShape, Rows, attach, feed, in_fp8, random_backbone
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.plain.rotary import RotaryTable
from worker.model.plain.trainer import Trainer

SMALL = LlamaShape(3, 256, 768, 4, 2, 64, 1000, True)
GATE_ROWS = 512  # of the arena: six adapters of ranks 16, 32, 64, 256 in turn
FLOOR = 1e-4  # relative, of a loss: a fortieth of bf16's resolution
DRAWS = 8  # steps of 12 rows whose losses are compared
TOLERANCE = 1.5  # times the error of plain bf16, against float64


def converted(backbone: Backbone, dtype: torch.dtype) -> Backbone:
    """The same backbone in another precision."""

    def turn(value: Any) -> Any:
        if isinstance(value, Fp8Weight):  # in float64 the numbers of its codes, else as it is
            return value.dense().double() if dtype == torch.float64 else value
        return value.to(dtype) if isinstance(value, Tensor) else value

    layers = tuple(replace(w, **{f.name: turn(getattr(w, f.name)) for f in fields(w)}) for w in backbone.layers)
    size = backbone.shape.head_size
    frequencies = 1.0 / 500000.0 ** (torch.arange(0, size, 2, device="cuda").float() / size)
    return replace(
        backbone, embedding=turn(backbone.embedding), head=turn(backbone.head), norm=turn(backbone.norm), layers=layers,
        rotaries=(RotaryTable(frequencies, 1.0, dtype),),
    )  # fmt: skip


def run_gate(
    longest: int = 0, fp8: bool = False, made: Callable[[LlamaShape], Backbone] = random_backbone, shape: LlamaShape = SMALL
) -> dict[str, Any]:
    """{tolerance, worst_error, compared, passed}: errors are ours divided by plain bf16's, both against float64.

    made, shape: the small base. longest: tokens of one extra row, first on the axis; with it activations are recomputed. A loss
    is a sum, in which the errors of its labels cancel by chance, in one of the two results more than in the other: of six
    losses, ours were 0.25 to 1.9 times as far off as plain bf16's. So losses are of DRAWS steps; of the long row's one step the
    error is divided by at least FLOOR. Gradients are those of the last step.
    """
    backbone = replace(made(shape), max_positions=max(4096, longest))
    backbone = in_fp8(backbone) if fp8 else backbone
    ours = DeviceTrainer(backbone, DeviceArena(backbone.targets, GATE_ROWS, "cuda", torch.bfloat16))
    attached, rows = attach(ours, 6, (*RANKS, 256)), Rows(shape.vocabulary)
    steps = [feed(attached, rows, 2) for _ in range(1 if longest else DRAWS)]
    if longest:
        row = long_row(longest, shape.vocabulary)
        steps[0][0] = replace(steps[0][0], examples=[row, *steps[0][0].examples], loss_weight=1 / longest)
    ours.arena.master.copy_(ours.arena.master.bfloat16())
    losses = _losses(ours, steps, recompute=longest > 0)
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        plain = Trainer(converted(backbone, dtype), Arena(backbone.targets, GATE_ROWS, "cuda", dtype))
        slots = {}
        for segment in attached:
            assert segment.slot is not None
            slots[segment.slot] = slot = plain.arena.attach(segment.slot.rank, segment.slot.scale * segment.slot.rank)
            plain.arena.master[slot.used] = ours.arena.master[segment.slot.used].to(dtype)
        moved = [[replace(one, slot=slots[one.slot]) for one in segments if one.slot is not None] for segments in steps]
        results.append((_losses(plain, moved), plain.arena.grad.double()))
    (truth, truth_grad), (plain_losses, plain_grad) = results
    ratios = {"loss": _error(losses, truth) / max(_error(plain_losses, truth), FLOOR if longest else 1e-6)}
    for segment in attached:
        assert segment.slot is not None
        used = segment.slot.used
        ratio = _error(ours.arena.grad[used].double(), truth_grad[used]) / _error(plain_grad[used], truth_grad[used])
        ratios[f"gradient of rank {segment.slot.rank} at row {segment.slot.row}"] = ratio
    worst = max(ratios.values())
    return {"tolerance": TOLERANCE, "worst_error": worst, "compared": ratios, "passed": bool(worst <= TOLERANCE)}


def _losses(trainer: Trainer, steps: list[list[Segment]], recompute: bool = False) -> Tensor:
    """float64, of every segment of these steps; the last one's gradients stay."""
    found = []
    for segments in steps:
        trainer.discard_gradients([segment.slot for segment in segments if segment.slot is not None])
        found += [loss.total for loss in trainer.train(segments, recompute)]
    return torch.stack(found).double()


def long_row(tokens: int, vocabulary: int) -> Example:
    """A row of this many tokens on the axis, each with a label after it."""
    drawn = np.random.default_rng(1).integers(0, vocabulary, tokens + 1, dtype=np.int32)
    return Example(drawn, np.arange(tokens + 1) > 0)


def _error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()
