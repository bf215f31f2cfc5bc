"""The whole fused pass over the kernels in fp32, and the benchmark's peers, against the plain path in float64: the wiring.

In float64, since such a small random model makes a hundred times as much of every rounding: the plain path in fp32 is itself
up to 1.2e-5 off, and two such errors, each within the bound, need not be within it of each other.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from grouped_lora.optimizer.adamw import clip_scales
from grouped_lora.work_table import ClassSize
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from benchmarks.contestants import GroupedLora, LoopLora, Lora, PeerPass
from tests.kernels.triton_case import DEVICE, error, rows_of
from tests.worker.model import tiny
from worker.model.arena import Arena, rows_for
from worker.model.backbone import Backbone
from worker.model.cuda import pass_graphs
from worker.model.cuda.batches.device_batch import BatchShape, DeviceBatch, fill, tables, unpack
from worker.model.cuda.batches.label_batch import LabelBatch, upload_labels
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer, spans_of
from worker.model.cuda.fused_pass import FusedPass
from worker.model.cuda.pass_graphs import FORWARD, RECOMPUTED, SAVED, PassMode
from worker.model.example import Example
from worker.model.flat_batch import Dropout, FlatBatch, Segment
from worker.model.plain.trainer import Trainer

CLOSE = 2e-5
SIZES = {  # as few heads and blocks as show everything: the interpreter is slow
    "vocab_size": tiny.VOCAB,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
NARROW = Qwen3Config(**SIZES)


class Step:
    """Adapters and rows of the base itself, as the plain path sees them and as one upload."""

    def __init__(self, config: PreTrainedConfig, dropout: float, ranks: tuple[int, ...] = (8, 20)) -> None:
        self.config = config
        self.backbone = Backbone.of(tiny.model(config), DEVICE)
        self.arena = DeviceArena(self.backbone.targets, sum(map(rows_for, ranks)), DEVICE, torch.float32)
        slots = [self.arena.attach(rank, 2.0 * rank) for rank in ranks]
        self.segments = [
            Segment(slot, tiny.examples([17, 9], seed=place), 0.3 + place, Dropout(dropout * (place % 2), 5, 2))
            for place, slot in enumerate(slots)
        ]
        tiny.randomise(Trainer(self.backbone, self.arena), self.segments)
        self.arena.refresh(slots)
        self.segments.insert(0, Segment(None, tiny.examples([4])))
        self.flat = FlatBatch.of(self.segments)
        self.spans, _ = spans_of(self.segments, self.flat.ranges)
        self.fused = FusedPass(self.backbone, self.arena.layout, self.backbone.max_positions)

    def upload(self, adapters: bool, larger: bool = False) -> tuple[DeviceBatch, LabelBatch]:
        """larger: in the bucket of a batch with more of everything."""
        spans = self.spans if adapters else ()
        table = tables(self.flat, spans, (False,) * len(spans))
        shape = BatchShape.of(self.flat, table)
        if larger:
            wider = tables(self.flat, spans, (False,) * len(spans), tokens=shape.tokens + 96)
            classes = tuple(ClassSize(size.rank_class, size.spans + 3, size.blocks + 5) for size in wider.sizes)
            table = wider.padded(classes)
            shape = BatchShape(shape.tokens + 96, 2 * shape.sequences, classes, shape.has_dropout)
        batch = unpack(shape, torch.from_numpy(fill(shape, self.flat, table)).to(DEVICE))
        return batch, upload_labels(self.flat, spans, (False,) * len(spans), shape, torch.device(DEVICE))

    def truth(self) -> tuple[Tensor, Tensor]:
        """Sums of log-probabilities, and the gradient [rows, W], by the plain path in float64."""
        backbone = Backbone.of(tiny.model(self.config, torch.float64), DEVICE)
        plain = Trainer(backbone, Arena(backbone.targets, self.arena.rows, DEVICE, torch.float64))
        segments = []
        for segment in self.segments:
            slot = None
            if segment.slot is not None:
                slot = plain.arena.attach(segment.slot.rank, segment.slot.scale * segment.slot.rank)
                assert slot.row == segment.slot.row
                plain.arena.master[slot.used] = self.arena.master[slot.used].double()
            segments.append(replace(segment, slot=slot))
        sums = torch.stack([loss.total for loss in plain.train(segments)]).neg()
        self.arena.grad.fill_(float("nan"))
        return sums, plain.arena.grad

    def norms_off(self) -> float:
        """Relative error of the adapters' norms, as AdamW takes them from the sums of squares, against their gradients'."""
        squares = self.arena.gradient.squares
        assert squares is not None
        norms = clip_scales(squares, rows_of(list(self.spans), [[0.0, 0.0, 1.0, 1.0, 1.0]] * len(self.spans)))
        return error(
            norms[:, 0], torch.stack([self.arena.grad[s.row : s.row + s.rank].nan_to_num().double().norm() for s in self.spans])
        )

    def off(self, want: Tensor) -> float:
        """Relative error of the adapters' gradients in the arena against `want` [rows, W].

        What only aligns a row's parts is nobody's, and is written by nobody.
        """
        ours, truth = (torch.cat([g[s.row : s.row + s.rank] for s in self.spans]) for g in (self.arena.grad, want))
        assert torch.equal(ours.isnan(), truth == 0)
        return error(ours[truth != 0], truth[truth != 0])


# In fp32 kernels of rank 256 take minutes to compile; test_device_trainer.py has such packs in bf16.
INTERPRETED_ALONE = pytest.mark.skipif(torch.cuda.is_available(), reason="NOT RUN: fp32 of rank 256 is interpreted alone")


@pytest.mark.parametrize(
    ("config", "dropout", "recompute", "ranks"),
    [
        pytest.param(NARROW, 0.3, False, (8, 20), id="narrow"),
        pytest.param(NARROW, 0.0, False, (4, 256, 16, 100), id="rank_classes", marks=INTERPRETED_ALONE),
        pytest.param(NARROW, 0.0, True, (8, 20), id="recomputed", marks=pytest.mark.slow),
        pytest.param(tiny.configs()["llama3_rope"], 0.0, False, (8, 20), id="llama", marks=pytest.mark.slow),
        pytest.param(tiny.configs()["gemma2"], 0.0, False, (8, 20), id="gemma2"),
        pytest.param(tiny.configs()["gemma3"], 0.3, True, (8, 20), id="gemma3"),
        pytest.param(tiny.configs()["olmo2"], 0.3, False, (8, 20), id="olmo2"),
        pytest.param(tiny.configs()["olmo2_biases"], 0.0, True, (8, 20), id="olmo2_recomputed", marks=pytest.mark.slow),
        pytest.param(tiny.configs()["phi3_part"], 0.0, False, (8, 20), id="phi3"),
        pytest.param(tiny.configs()["qwen2_window"], 0.0, False, (8, 20), id="qwen2", marks=pytest.mark.slow),
    ],
)
def test_a_pass_equals_the_plain_path(
    config: PreTrainedConfig, dropout: float, recompute: bool, ranks: tuple[int, ...]
) -> None:
    step = Step(config, dropout, ranks)
    sums, grad = step.truth()
    batch, labels = step.upload(adapters=True)
    layered = step.arena.layered
    result = step.fused.train(batch, labels, layered(step.arena.compute_copy), step.arena.gradient, recompute)
    assert error(result.sums[: len(sums)], sums) < CLOSE
    assert step.off(grad) < CLOSE
    assert step.norms_off() < CLOSE


@pytest.mark.parametrize("whole", [False, True])
def test_a_pass_in_a_larger_bucket_equals_the_plain_path(whole: bool) -> None:
    """Whether its last layer has the label tokens, or all as a short pass's."""
    step = Step(NARROW, 0.3, (8, 20))
    sums, grad = step.truth()
    batch, labels = step.upload(adapters=True, larger=True)
    adapters = step.arena.layered(step.arena.compute_copy)
    assert error(step.fused.evaluate(batch, labels, adapters, whole).sums[: len(sums)], sums) < CLOSE
    result = step.fused.train(batch, labels, adapters, step.arena.gradient, whole=whole)
    assert error(result.sums[: len(sums)], sums) < CLOSE
    assert not result.sums[len(sums) :].any()
    assert step.off(grad) < CLOSE
    assert step.norms_off() < CLOSE


class Recalled(CapturedGraphs[Any, Any]):
    """Graphs of a device without any: what is captured is called again."""

    def _recorded(self, inputs: Tensor, run: Callable[[], Any], warm: Any, rest: Callable[[], Any] | None) -> Any:
        first, later = SimpleNamespace(replay=run), SimpleNamespace(replay=rest)
        return SimpleNamespace(graph=first, inputs=inputs, result=None, rest=later)


@pytest.mark.skipif(torch.cuda.is_available(), reason="NOT RUN: test_captured_passes_gpu.py compares real graphs")
@pytest.mark.parametrize(
    ("mode", "whole"),
    [
        (SAVED, False),
        (SAVED, True),
        pytest.param(RECOMPUTED, False, marks=pytest.mark.slow),
        pytest.param(RECOMPUTED, True, marks=pytest.mark.slow),
        (FORWARD, False),
        (FORWARD, True),
    ],
)
def test_a_replayed_pass_has_the_bits_of_a_launched_one_whatever_was_replayed_before(
    mode: PassMode, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its labels are those of its own pass, of which there may be more or fewer than when its bucket was captured; the gradient
    of places without a label is zero, whatever was there."""
    first = Step(Qwen3Config(**SIZES | {"num_hidden_layers": 1}), 0.0, (8, 20))
    monkeypatch.setattr(pass_graphs, "CAPTURE_COSTS", pass_graphs.LAUNCH_WASTES)  # the second pass captures
    trainer = DeviceTrainer(first.backbone, first.arena)
    trainer.graphs._captured = Recalled(first.backbone.device, 4)
    monkeypatch.setattr(trainer.graphs, "whole", lambda shape: whole)
    few = FlatBatch.of([replace(s, examples=[_fewer_labels(one) for one in s.examples]) for s in first.segments])
    assert few.size == first.flat.size
    assert 0 < few.label_bounds[-1] < first.flat.label_bounds[-1]
    table = tables(first.flat, first.spans, (False,) * len(first.spans))
    shape = BatchShape.of(first.flat, table)
    assert shape == BatchShape.of(few, table)

    def taken(flat: FlatBatch, launched: bool) -> list[Tensor]:  # in the bucket `shape`
        first.arena.grad.zero_()
        host, device = torch.from_numpy(fill(shape, flat, table)), first.backbone.device
        labels = upload_labels(flat, first.spans, (False,) * len(first.spans), shape, device)
        run = trainer.launch if launched else partial(trainer.graphs.run, launcher=trainer)
        result = run(shape, host, labels, mode)
        return [result.sums.clone(), result.hits.clone(), first.arena.grad.clone()]

    wanted = {id(flat): taken(flat, launched=True) for flat in (first.flat, few)}
    for flat in (first.flat, first.flat, few):
        found = taken(flat, launched=False)
        assert all(map(torch.equal, found, wanted[id(flat)]))
        assert bool(found[2].any()) == (mode != FORWARD)
    own, wider = (shape, table), tables(first.flat, first.spans, (False,) * len(first.spans), tokens=shape.tokens + 64)
    shape, table = replace(shape, tokens=shape.tokens + 64, classes=wider.sizes), wider
    for _ in range(2):
        taken(first.flat, launched=False)
    assert trainer.captured == [own[0], shape]
    shape, table = own
    assert all(map(torch.equal, taken(few, launched=False), wanted[id(few)])), "the other bucket has written to the same memory"


def _fewer_labels(example: Example) -> Example:
    """The same tokens; every second label, and the last, which says how long the example is on the axis."""
    mask = example.loss_mask & (np.arange(len(example.loss_mask)) % 2 == 0)
    mask[np.flatnonzero(example.loss_mask)[-1]] = True
    return replace(example, loss_mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "grouped"])
def test_the_peers_of_the_benchmark_compute_the_same(kind: str) -> None:
    step = Step(LlamaConfig(**SIZES), 0.0)
    sums, grad = step.truth()
    batch, labels = step.upload(adapters=False)
    copy, columns = step.arena.layered(step.arena.compute_copy), step.fused.stack.dims.columns
    widths = {target.module: (target.in_features, target.out_features) for target in step.arena.layout.targets[:7]}
    found = step.arena.layered(step.arena.grad)
    lora: Lora = LoopLora(copy, found, step.spans, columns)
    if kind == "grouped":
        lora = GroupedLora(copy, batch.tokens.shape[0], step.spans, columns, widths)
    result = PeerPass(step.fused, lora).train(batch, labels)
    if isinstance(lora, GroupedLora):
        for (layer, matrix), factors in lora.grads.items():
            for at, width, part in zip(columns[matrix], widths[matrix], factors, strict=True):
                for place, span in enumerate(step.spans):
                    found[layer, span.row : span.row + span.rank, at : at + width] = part[place, : span.rank]
    assert error(result[: len(sums)], sums) < CLOSE
    assert step.off(grad) < CLOSE
