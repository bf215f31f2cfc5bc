"""A base in NF4: trained on as if it were the base that its codes say, decoded once a pass and direction for all adapters."""

from dataclasses import replace

import pytest
import torch
from grouped_lora.base.nf4 import Nf4Weight
from torch import Tensor

from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate

CONFIGS = tiny.configs()
RANKS = (8, 1, 24)
LENGTHS = ([23, 9], [2], [40, 17, 3])


def _decoded(backbone: Backbone) -> Backbone:
    """The same base, its numbers written out."""
    layers = []
    for weights in backbone.layers:
        coded = {name: value.dense() for name, value in vars(weights).items() if isinstance(value, Nf4Weight)}
        assert len(coded) == 4
        layers.append(replace(weights, **coded))
    return replace(backbone, layers=tuple(layers))


def _train(backbone: Backbone, jobs: tuple[int, ...] = (0, 1, 2)) -> dict[int, tuple[list[float], Tensor]]:
    """Each job's losses and rows after three steps beside the others."""
    trainer = Trainer(backbone, Arena(backbone.targets, 64))
    segments = [Segment(trainer.arena.attach(RANKS[job], 2.0 + job), tiny.examples(LENGTHS[job], seed=job)) for job in jobs]
    losses: dict[int, list[float]] = {job: [] for job in jobs}
    for job, segment in zip(jobs, segments, strict=True):
        assert segment.slot is not None
        trainer.init_adapter(segment.slot, job)
    for step in range(1, 4):
        for job, loss in zip(jobs, trainer.train(segments), strict=True):
            losses[job].append(float(loss.total))
        trainer.update([RowUpdate(segment.slot, 1e-2, 0.01, step, 1.0) for segment in segments if segment.slot is not None])
    made = zip(jobs, segments, strict=True)
    return {job: (losses[job], trainer.arena.master[s.slot.used].clone()) for job, s in made if s.slot is not None}


def _same(one: tuple[list[float], Tensor], other: tuple[list[float], Tensor]) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


@pytest.mark.parametrize("precision", ["nf4", "nf4_double"])
@pytest.mark.parametrize("name", ["llama_biases", "qwen3", "gemma2"])
def test_training_is_that_on_the_decoded_base_bit_for_bit_packed_and_alone(name: str, precision: str) -> None:
    model = tiny.model(CONFIGS[name])
    backbone = Backbone.of(model, precision=precision)
    packed, decoded, plain = _train(backbone), _train(_decoded(backbone)), _train(Backbone.of(model))
    for job in packed:
        assert _same(packed[job], decoded[job])
        assert packed[job][0] != plain[job][0], "the codes have taken something off"
    assert _same(packed[2], _train(backbone, (2,))[2])


def test_a_matrix_is_decoded_once_a_pass_and_direction_for_all_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = Backbone.of(tiny.model(CONFIGS["qwen3"]), precision="nf4")
    decoded, real = [], Nf4Weight.dense
    monkeypatch.setattr(Nf4Weight, "dense", lambda self: decoded.append(self) or real(self))
    trainer = Trainer(backbone, Arena(backbone.targets, 64))
    segments = [Segment(trainer.arena.attach(rank, 1.0), tiny.examples([9])) for rank in RANKS]
    trainer.evaluate(segments)
    assert len(decoded) == 4 * 2, "four weights in each of two layers"
    decoded.clear()
    trainer.train(segments)
    assert len(decoded) == 2 * 4 * 2 - 1, "nothing below the first layer learns, so q, k and v of it have no way back"


def test_what_is_kept_is_the_codes() -> None:
    model = tiny.model(CONFIGS["llama3_rope"])
    sizes = {}
    for precision in ("bf16", "nf4"):
        backbone = Backbone.of(model, precision=precision)
        matrices = [t for w in backbone.layers for t in (w.w_qkv, w.w_o, w.w_gate_up, w.w_down)]
        sizes[precision] = sum(tensor.nbytes for tensor in backbone.tensors())
        linear = sum(int(torch.Size(matrix.shape).numel()) for matrix in matrices)
    saved = sizes["bf16"] - sizes["nf4"]
    assert saved == pytest.approx(linear * (4 - 4.5 / 8), rel=0.01), "float32 stands for bf16 here"
    trainer = Trainer(backbone, Arena(backbone.targets, 8))
    widest = max(int(torch.Size(matrix.shape).numel()) for matrix in matrices) * 4
    assert trainer.activation_bytes(64) > widest, "a decoded weight is counted while it lives"
