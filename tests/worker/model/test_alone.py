"""Packed equals solo: a job trains to the same bits alone and beside seven others, and a broken neighbour changes nothing."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, LlamaConfig, PreTrainedConfig, Qwen3Config

from tests.worker.model import tiny
from worker.model.arena import Arena, Slot
from worker.model.backbone import Backbone
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate

STEPS = 20
OFFSETS = (0, 1, 4, 9)  # numbers of 4 bytes; a cache line, and the widest vector, has 16
VOCAB = 515
# inner sizes beyond a BLAS's own cut (864, 1536), a head size that is no multiple of a vector, a vocabulary that is odd
WIDE = LlamaConfig(
    vocab_size=VOCAB, hidden_size=288, num_hidden_layers=2, intermediate_size=768, num_attention_heads=6, num_key_value_heads=6
)
ODD = Qwen3Config(
    vocab_size=VOCAB,
    hidden_size=100,
    num_hidden_layers=2,
    intermediate_size=259,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=18,
)

CAPPED = Gemma2Config(
    vocab_size=VOCAB,
    hidden_size=96,
    num_hidden_layers=2,
    intermediate_size=259,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=18,
    sliding_window=7,
    attn_logit_softcapping=3.0,
    final_logit_softcapping=6.0,
)


@dataclass(frozen=True)
class Job:
    rank: int
    rate: float
    batch: int
    seed: int

    def rows(self, step: int) -> list[Example]:
        """The job's rows of a step: its own lengths, short ones among them, different at every step."""
        rng = np.random.default_rng((self.seed, step))
        return tiny.examples(rng.integers(2, 60, self.batch).tolist(), seed=self.seed * 1000 + step, vocab=VOCAB)


JOBS = [Job(8, 3e-3, 4, 0), Job(1, 1e-2, 1, 1), Job(24, 1e-3, 8, 2), Job(16, 3e-4, 2, 3)] + [
    Job(8 + place, 1e-3 * place, place - 3, place) for place in range(4, 8)
]


@dataclass
class Outcome:
    losses: list[float]
    rows: Tensor
    moments: Tensor


def _at(offset: int, tensor: Tensor) -> Tensor:
    """The same numbers in storage that begins `offset` of them after a multiple of 64 bytes."""
    room = torch.empty(tensor.numel() + 16 + offset, dtype=tensor.dtype)
    start = -room.data_ptr() // room.element_size() % 16 + offset
    assert room[start:].data_ptr() % 64 == offset * room.element_size() % 64
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


def _train(config: PreTrainedConfig, jobs: list[Job], poison: Job | None = None, offset: int = 0) -> dict[Job, Outcome]:
    """offset: where the base's weights and the adapters begin, in numbers after a multiple of 64 bytes."""
    backbone = Backbone.of(tiny.model(config))
    trainer = Trainer(backbone, Arena(backbone.targets, 144))
    for tensor in (*backbone.tensors(), trainer.arena.master, trainer.arena.grad):
        tensor.data = _at(offset, tensor)
    slots: dict[Job, Slot] = {}
    for job in jobs:
        slots[job] = trainer.arena.attach(job.rank, 2.0 * job.rank)
        trainer.init_adapter(slots[job], job.seed)
    if poison is not None:
        trainer.arena.master[slots[poison].used] = float("nan")
    losses: dict[Job, list[float]] = {job: [] for job in jobs}
    for step in range(1, STEPS + 1):
        rows = {job: job.rows(step) for job in jobs}
        segments = [Segment(slots[job], rows[job], 1 / sum(row.labels for row in rows[job])) for job in jobs]
        for job, loss in zip(jobs, trainer.train(segments), strict=True):
            losses[job].append(float(loss.total))
        trainer.update([RowUpdate(slots[job], job.rate, 0.01, step, 1.0) for job in jobs])
    assert trainer.forwards == STEPS
    arena = trainer.arena
    return {
        job: Outcome(losses[job], arena.master[slot.used].clone(), arena.moments.buffers[1][slot.used].clone())
        for job, slot in slots.items()
    }


def _same(packed: Outcome, solo: Outcome) -> None:
    assert packed.losses == solo.losses
    assert torch.equal(packed.rows, solo.rows)
    assert torch.equal(packed.moments, solo.moments)


@pytest.mark.parametrize(
    ("config", "threads"),
    [(WIDE, 1), (WIDE, 2), (ODD, 1), (CAPPED, 2)],
    indirect=["threads"],
    ids=["wide, one thread", "wide, two threads", "odd", "capped"],
)
def test_a_job_is_the_same_bits_alone_and_beside_seven(config: PreTrainedConfig, threads: int) -> None:
    packed = _train(config, JOBS)
    for job in JOBS[:3]:
        solo = _train(config, [job])[job]
        assert solo.losses[0] != solo.losses[-1]
        assert solo.rows.abs().max() > 0
        _same(packed[job], solo)


@pytest.mark.parametrize("config", [ODD, CAPPED], ids=["odd", "capped"])
def test_where_things_lie_in_memory_does_not_matter(config: PreTrainedConfig) -> None:
    """Heads of 18 numbers, and all of base and adapters off the cache lines: fails without MKL_CBWR on AVX2 code of MKL's."""
    packed = {offset: _train(config, JOBS[:2], offset=offset) for offset in OFFSETS}
    for job in JOBS[:2]:
        solo = _train(config, [job])[job]
        for offset in OFFSETS:
            _same(packed[offset][job], solo)


def test_the_order_of_the_neighbours_does_not_matter() -> None:
    ahead, behind = _train(ODD, JOBS[:4]), _train(ODD, JOBS[3::-1])
    for job in JOBS[:4]:
        _same(ahead[job], behind[job])


def test_a_neighbour_of_nan_changes_not_one_bit() -> None:
    healthy, beside = _train(ODD, JOBS[:4]), _train(ODD, JOBS[:4], poison=JOBS[2])
    assert all(np.isnan(beside[JOBS[2]].losses))
    assert not beside[JOBS[2]].rows.isfinite().any()
    for job in (JOBS[0], JOBS[1], JOBS[3]):
        _same(beside[job], healthy[job])
