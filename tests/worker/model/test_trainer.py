"""The trainer against PEFT, adapter by adapter: losses, gradients, micro-batches, isolation, and what is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from grouped_lora.dropout import keep_mask, threshold
from numpy.typing import NDArray

from contract.job_config import MODULES
from tests.worker.model import tiny
from tests.worker.model.under_peft import factors, under_peft
from worker.adapters.joined_adapters import by_stored_name, places_of
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Dropout, FlatBatch, Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate

CONFIGS = tiny.configs()
RANKS = (8, 1, 24, 5)


def _trainer(name: str, rows: int = 64) -> Trainer:
    backbone = Backbone.of(tiny.model(CONFIGS[name]))
    return Trainer(backbone, Arena(backbone.targets, rows))


def _segments(trainer: Trainer) -> list[Segment]:
    """Four adapters of different ranks and scales, ragged: one has a single one-token row, one runs on the base alone."""
    lengths = [[23, 9], [2], [40, 17, 3], [11]]
    slots = [trainer.arena.attach(rank, alpha=3.0 * place + 1) for place, rank in enumerate(RANKS)]
    segments = [
        Segment(slot, tiny.examples(n, seed=place), loss_weight=0.1 * place + 0.05)
        for place, (slot, n) in enumerate(zip(slots, lengths, strict=True))
    ]
    segments.insert(2, Segment(None, tiny.examples([14], seed=9), loss_weight=1.0))
    tiny.randomise(trainer, segments)
    return segments


class Masked(torch.nn.Module):
    """Stands where PEFT has its dropout: our mask, PEFT's factor."""

    keys: NDArray[np.uint32]  # of the row that is being read

    def __init__(self, matrix: int, probability: float) -> None:
        super().__init__()
        self.matrix, self.probability = matrix, probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1:], dtype=torch.bool)  # a row's last token is nobody's label: it has no key
        mask[: len(self.keys)] = keep_mask(self.keys, self.matrix, x.shape[2], threshold(self.probability))
        return x * mask / (1 - self.probability)


def _peft_gradients(name: str, trainer: Trainer, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
    """PEFT's loss sum and gradients of weight * loss, laid out as one adapter's rows."""
    assert segment.slot is not None
    slot, layout = segment.slot, trainer.arena.layout
    matrices, wrapped = by_stored_name(layout.targets), under_peft(CONFIGS[name], trainer, slot)
    if segment.dropout is not None:
        for target, parts in matrices.items():
            number = parts[0].layer * len(MODULES) + MODULES.index(parts[0].module)
            module = wrapped.get_submodule(f"base_model.model.{target}")
            module.lora_dropout["default"] = Masked(number, segment.dropout_probability)
    total = torch.zeros(())
    for at, row in enumerate(segment.examples):
        if segment.dropout is not None:
            Masked.keys = replace(segment.dropout, first=segment.dropout.first + at).keys([row])
        total = total + tiny.label_nll(wrapped(tiny.token_rows(row)).logits, row)
    (total * segment.loss_weight).backward()
    rows = torch.zeros(slot.rank, layout.width)
    views = layout.split(rows)
    for target, parts in matrices.items():
        a_grad, b_grad = (weight.grad for weight in factors(wrapped, target))
        for place, part in enumerate(parts):
            ranks = slice(place * slot.rank, (place + 1) * slot.rank)
            views[part.name][0].copy_(a_grad[ranks])
            views[part.name][1].copy_(b_grad[places_of(part)][:, ranks])
    return total.detach(), rows


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_losses_and_gradients_equal_peft_one_by_one(name: str) -> None:
    trainer = _trainer(name)
    segments = _segments(trainer)
    losses = trainer.train(segments)
    untouched = torch.ones(trainer.arena.rows, dtype=torch.bool)
    for segment, loss in zip(segments, losses, strict=True):
        if segment.slot is None:
            continue
        total, expected = _peft_gradients(name, trainer, segment)
        torch.testing.assert_close(loss.total, total, rtol=1e-5, atol=1e-5)
        assert loss.labels == sum(row.labels for row in segment.examples)
        ours = trainer.arena.grad[segment.slot.used]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        untouched[segment.slot.used] = False
    assert not trainer.arena.grad[untouched].any()


@pytest.mark.parametrize("name", ["llama3_rope", "qwen3"])
def test_dropout_equals_peft_with_the_same_mask_forward_and_backward(name: str) -> None:
    trainer = _trainer(name)
    dropped = [
        replace(segment, dropout=Dropout(probability=0.15 * place, seed=2**33 + place, step=4 + place, first=place))
        for place, segment in enumerate(_segments(trainer))
    ]
    plain = [loss.total for loss in trainer.evaluate([replace(segment, dropout=None) for segment in dropped])]
    losses = trainer.train(dropped)
    assert torch.equal(losses[0].total, plain[0])
    for segment, loss, undropped in zip(dropped, losses, plain, strict=True):
        if segment.slot is None or not segment.dropout_probability:
            continue
        assert loss.total != undropped
        total, expected = _peft_gradients(name, trainer, segment)
        torch.testing.assert_close(loss.total, total, rtol=1e-5, atol=1e-5)
        ours = trainer.arena.grad[segment.slot.used]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_dropout_is_the_same_alone_packed_and_however_the_step_is_cut() -> None:
    packed, alone = _trainer("mistral"), _trainer("mistral")
    segments, again = ([replace(s, dropout=Dropout(0.4, 11, 2)) for s in _segments(t)] for t in (packed, alone))
    losses = packed.train(segments)
    parts = [
        alone.train([replace(again[0], examples=[row], dropout=Dropout(0.4, 11, 2, first=at))])[0].total
        for at, row in enumerate(again[0].examples)
    ]
    torch.testing.assert_close(sum(parts, torch.zeros(())), losses[0].total)
    slot, other = segments[0].slot, again[0].slot
    assert slot is not None
    assert other is not None
    ours = packed.arena.grad[slot.used]
    torch.testing.assert_close(alone.arena.grad[other.used], ours, rtol=1e-4, atol=1e-6 * float(ours.abs().max()))


def test_evaluate_gives_the_training_losses_and_leaves_no_trace() -> None:
    trainer = _trainer("qwen3")
    segments = _segments(trainer)
    seen = trainer.evaluate(segments)
    assert not trainer.arena.grad.any()
    assert trainer.forwards == 0
    for evaluated, trained in zip(seen, trainer.train(segments), strict=True):
        assert torch.equal(evaluated.total, trained.total)
        assert evaluated.labels == trained.labels
        assert torch.equal(evaluated.hits, trained.hits)
    assert trainer.forwards == 1


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_hits_are_the_labels_that_their_logits_would_write(name: str) -> None:
    trainer = _trainer(name)
    segments = _segments(trainer)
    batch = FlatBatch.of(segments)
    written = dict(zip(batch.label_indices.tolist(), tiny.label_logits(trainer, segments).argmax(1).tolist(), strict=True))
    place, wanted = 0, []
    for segment in segments:
        for row in segment.examples:  # its last token is learned, and read by nobody
            place += row.length
            row.tokens[-1] = written[place - 1]
        batch = FlatBatch.of([segment])
        logits = tiny.label_logits(trainer, [segment]).argmax(1)
        wanted.append(int((logits == batch.label_tokens).sum()))
        assert wanted[-1] >= len(segment.examples)
    for found in (trainer.evaluate(segments), trainer.train(segments)):
        assert [loss.hits.item() for loss in found] == wanted
    halves = [trainer.evaluate([replace(segments[0], examples=[row])])[0] for row in segments[0].examples]
    assert (halves[0] + halves[1]).hits == wanted[0]


def test_micro_batches_add_up_to_the_step() -> None:
    whole, split = _trainer("mistral"), _trainer("mistral")
    segments, again = _segments(whole), _segments(split)
    whole.train(segments)
    for place in range(3):
        split.train([Segment(s.slot, s.examples[place : place + 1], s.loss_weight) for s in again])
    assert (whole.forwards, split.forwards) == (1, 3)
    scale = float(whole.arena.grad.abs().max())
    torch.testing.assert_close(split.arena.grad, whole.arena.grad, rtol=1e-4, atol=1e-6 * scale)


def test_the_same_micro_batches_give_the_same_bits() -> None:
    once, again = _trainer("llama3_rope"), _trainer("llama3_rope")
    for trainer in (once, again):
        segments = _segments(trainer)
        for _ in range(2):
            trainer.train(segments)
    assert torch.equal(once.arena.grad, again.arena.grad)


def test_nothing_to_learn_is_no_error() -> None:
    trainer = _trainer("llama")
    slot = trainer.arena.attach(4, 4)
    trainer.init_adapter(slot, 0)
    empty = tiny.examples([5])[0]
    empty.loss_mask[:] = False
    for segments in ([], [Segment(slot, [])], [Segment(slot, [empty]), Segment(None, [])]):
        losses = trainer.train(segments) + trainer.evaluate(segments)
        assert [(float(loss.total), loss.labels) for loss in losses] == [(0.0, 0)] * (2 * len(segments))
    assert not trainer.arena.grad.any()


def test_first_weights_are_pefts_and_belong_to_the_seed_alone() -> None:
    trainer = _trainer("qwen2")
    first, _, other = (trainer.arena.attach(rank, 16) for rank in (6, 8, 6))
    trainer.init_adapter(first, 41)
    trainer.init_adapter(other, 41)
    assert torch.equal(trainer.arena.master[first.used], trainer.arena.master[other.used])
    for target in trainer.arena.layout.targets:
        a, b = trainer.arena.weights(first)[target.name]
        bound = target.in_features**-0.5
        assert not b.any()
        assert a.abs().max() <= bound
        assert abs(float(a.var()) - bound**2 / 3) < 0.4 * bound**2 / 3
    trainer.init_adapter(other, 42)
    assert not torch.equal(trainer.arena.master[first.used], trainer.arena.master[other.used])


def test_activation_bytes_follow_the_tokens() -> None:
    trainer = _trainer("qwen2")
    small, large = trainer.activation_bytes(200), trainer.activation_bytes(400)
    assert 1.8 < large / small < 2.2
    assert small > 200 * 2 * 60 * 4
    assert trainer.forwards == 0
    assert not trainer.arena.grad.any()


def test_an_update_moves_only_its_own_rows() -> None:
    trainer = _trainer("llama")
    segments = [s for s in _segments(trainer) if s.slot is not None]
    trainer.train(segments)
    before, gradient = trainer.arena.master.clone(), trainer.arena.grad.clone()
    mover = segments[1].slot
    assert mover is not None
    trainer.update([RowUpdate(mover, 1e-2, 0.1, 1, 1.0)])
    others = torch.ones(trainer.arena.rows, dtype=torch.bool)
    others[mover.used] = False
    assert torch.equal(trainer.arena.master[others], before[others])
    assert torch.equal(trainer.arena.grad[others], gradient[others])
    assert not torch.equal(trainer.arena.master[mover.used], before[mover.used])
    assert not trainer.arena.grad[mover.used].any()
