"""Passes that come often, on a GPU: captured as graphs, with the bits of launched ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.worker.model.device_case import device_trainer, error, examples, fill_slots, gemma2, llama
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_trainer import FAST_GRAPH_TOKENS, GRAPH_TOKENS
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.flat_batch import Segment

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("room", [True, False])  # for the pool beside the allocator's caches
@pytest.mark.parametrize(("make", "recompute"), [(llama, False), (gemma2, False), (llama, True)])
def test_buckets_that_come_often_are_captured_and_keep_their_bits(
    make: Callable[[], PreTrainedModel], recompute: bool, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not room:
        monkeypatch.setattr(CapturedGraphs, "_has_room", lambda self: False)
    trainer, emptied, empty_cache = device_trainer(make()), list[None](), torch.cuda.empty_cache
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: (emptied.append(None), empty_cache()))
    slots = fill_slots(trainer)
    passes = [[Segment(slot, examples(index, rows), 0.01) for index, slot in enumerate(slots)] for rows in (5, 2, 16)]
    sizes = [sum(example.length for segment in segments for example in segment.examples) for segments in passes]
    assert sizes[1] < sizes[0] < GRAPH_TOKENS < sizes[2] < FAST_GRAPH_TOKENS - 512
    seen: list[list[list[Tensor]]] = [[] for _ in passes]
    for _ in range(CAPTURE_AFTER + 3):
        for place, segments in enumerate(passes):
            losses = trainer.train(segments, recompute)
            found = [value.clone() for loss in losses for value in (loss.total, loss.hits)]
            arena = trainer.arena
            seen[place].append(found + [part[slot.stored].clone() for slot in slots for part in (arena.grad, arena.squares)])
            trainer.discard_gradients(slots)
    captured = sum(size <= trainer.graph_tokens for size in sizes)
    assert len(trainer.captured) == captured
    assert len(emptied) == (0 if room else captured - 1), "the shorter pass finds its memory in the longer one's"
    for rounds in seen:
        for later in rounds[1:]:
            assert all(torch.equal(one, other) for one, other in zip(later, rounds[0], strict=True))


def test_evaluations_that_come_often_are_captured_and_keep_their_bits() -> None:
    trainer = device_trainer(llama())
    segments = [Segment(slot, examples(index), 0.01) for index, slot in enumerate(fill_slots(trainer))]
    found = [[loss.total.item() for loss in trainer.evaluate(segments)] for _ in range(CAPTURE_AFTER + 2)]
    assert len(trainer.captured) == 1
    assert found == [found[0]] * len(found)


def test_a_pass_of_several_tasks_runs_in_a_captured_bucket_that_holds_it() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    longer = [Segment(slot, examples(index, 5), 0.01) for index, slot in enumerate(slots)]
    shorter = longer[:3]  # one task has left: in the longer bucket such a pass wastes two fifths of itself

    def trained(segments: list[Segment], shared: bool) -> tuple[Tensor, list[Tensor]]:
        losses = trainer.train(segments, shared=shared)
        found = [trainer.arena.grad[segment.slot.used].clone() for segment in segments if segment.slot is not None]
        trainer.discard_gradients(slots)
        return torch.stack([loss.total for loss in losses]), found

    losses, grads = trained(shorter, shared=True)
    for _ in range(CAPTURE_AFTER):
        trained(longer, shared=True)
    (captured,) = trainer.captured
    for _ in range(3):
        again, others = trained(shorter, shared=True)
        assert error(again, losses) < 1e-3
        assert all(error(one, other) < 0.02 for one, other in zip(others, grads, strict=True))
    assert trainer.captured == [captured], "all three were replayed in the longer one's bucket"
    again, others = trained(shorter, shared=True)
    assert len(trainer.captured) == 2, "with its launch they have wasted what a capture costs"
    assert torch.equal(again, losses)
    assert all(torch.equal(one, other) for one, other in zip(others, grads, strict=True))
    trainer.graphs.forget()
    for _ in range(CAPTURE_AFTER):
        trained(longer, shared=True)
    alone, own = trained(shorter, shared=False)
    assert torch.equal(alone, losses), "a pass of one task runs in its own bucket, whatever was captured"
    assert all(torch.equal(one, other) for one, other in zip(own, grads, strict=True))
