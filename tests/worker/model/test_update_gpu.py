"""The optimizer step on a GPU: nothing waits for the device, and an adapter that is ruined keeps its weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model.device_case import device_trainer, examples, fill_slots, llama
from worker.model.arena import AdapterState
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import StepLosses
from worker.model.row_optimizer import RowUpdate
from worker.replicas.packed_step import Launched, Stepped, launch, step
from worker.replicas.step_in_progress import StepInProgress

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graph_tokens", [0, 4096])
def test_nothing_in_a_step_waits_for_the_device(graph_tokens: int) -> None:
    trainer = device_trainer(llama())
    trainer.graph_tokens = graph_tokens
    slots = fill_slots(trainer)

    def take(number: int) -> None:
        trainer.train([Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)])
        trainer.update([RowUpdate(slot, 1e-3, 0.0, number, 1.0) for slot in slots])

    for number in range(1, CAPTURE_AFTER):
        take(number)
    assert trainer.captured == []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in (CAPTURE_AFTER, CAPTURE_AFTER + 1):  # the first of which captures it
            take(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(trainer.captured) == (1 if graph_tokens else 0)


def test_no_whole_step_of_jobs_waits_for_more_than_its_losses() -> None:
    trainer = device_trainer(llama(), 256)
    jobs = job_steps(trainer, Rows(300), 1, 4)

    def take(number: int) -> Stepped:
        return step(trainer, [replace(one, number=number) for one in jobs], 1 << 16, lambda: None)

    take(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepped = take(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(np.isfinite(loss) for loss in stepped.losses.values())


class Begun:
    """Steps of four jobs, launched ahead or not."""

    def __init__(self, ahead: bool) -> None:
        self.trainer, self.ahead = device_trainer(llama(), 256), ahead
        self.trainer.graph_tokens = 0  # a capture waits for the device
        torch.manual_seed(0)
        self.jobs = job_steps(self.trainer, Rows(300), 1, 4)

    def step(self, number: int, *unread: Launched) -> Launched:
        steps = StepInProgress([replace(one, number=number) for one in self.jobs], 1 << 16)
        return launch(self.trainer, {steps: None}, 1 << 16, lambda: None, self.ahead, unread)


def test_a_step_is_launched_while_the_device_is_at_the_last_and_is_the_same() -> None:
    found = []
    for ahead in (True, False):
        begun = Begun(ahead)
        losses = [begun.step(0).read().losses]
        if ahead:
            torch.cuda.set_sync_debug_mode("error")
            try:
                launched = [second := begun.step(1), third := begun.step(2, second), begun.step(3, second, third)]
            finally:
                torch.cuda.set_sync_debug_mode("default")
            steps = [one.read() for one in launched]
            assert all(0 < stepped.seconds < 60 for stepped in steps)
            losses += [stepped.losses for stepped in steps]
        else:
            losses += [begun.step(number).read().losses for number in (1, 2, 3)]
        found.append((losses, begun.trainer.arena.master.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_step_launched_ahead_updates_no_job_whose_loss_was_not_finite() -> None:
    """Its weights are sound, so that the loss of its second step is a number."""
    begun = Begun(ahead=True)
    first = begun.step(0)
    key, (ruined, *others) = begun.jobs[1].job.key, [begun.jobs[place].slot.used for place in (1, 0, 2, 3)]
    nan = torch.tensor(float("nan"), device=first.sums[0][1].total.device)
    first.sums = [(of, replace(loss, total=nan) if of == key else loss) for of, loss in first.sums]
    before = begun.trainer.arena.master.clone()
    second = begun.step(1, first).read()
    after = begun.trainer.arena.master
    assert np.isfinite(second.losses[key])
    assert torch.equal(after[ruined], before[ruined])
    assert not any(torch.equal(after[rows], before[rows]) for rows in others)


def test_an_adapter_whose_loss_is_not_finite_keeps_its_weights() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    losses = trainer.train([Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)])
    before = trainer.arena.master.clone()
    totals = torch.stack([loss.total for loss in losses])
    totals[1] = float("nan")
    updates = [RowUpdate(slot, 1e-2, 0.0, 1, 1.0) for slot in slots]
    trainer.update(updates, StepLosses(totals, (0, 1, 2, 3)))
    for index, slot in enumerate(slots):
        assert torch.equal(trainer.arena.master[slot.used], before[slot.used]) == (index == 1)


def test_a_copy_of_weights_is_of_before_what_is_launched_after_it() -> None:
    """However late it is made: updates, other adapters' weights and rows that move wait for it."""
    trainer = device_trainer(llama(), 256)
    slots, arena = fill_slots(trainer), trainer.arena
    expected = [arena.master[slot.used].cpu() for slot in slots]

    def change(index: int) -> None:
        slot = slots[index]
        if index == 0:
            trainer.train([Segment(slot, examples(0), 0.01)])
            trainer.update([RowUpdate(slot, 1.0, 0.0, 1, 1.0)])
        elif index == 1:
            arena.restore(slot, AdapterState(torch.full((slot.rank, arena.layout.width), 7.0)))
        elif index == 2:
            arena.detach(slot)
        else:
            arena.grow(arena.rows + 64)
            torch.full_like(arena.master[:-64], 7.0)  # in the memory that the rows had

    for index in range(4):
        torch.cuda.synchronize()
        with torch.cuda.stream(arena._copying):
            torch.cuda._sleep(10**9)  # about half a second
        copied = arena.begin_snapshot(slots[index])
        change(index)
        assert torch.equal(copied(), expected[index])
        assert index == 3 or not torch.equal(arena.master[slots[index].used].cpu(), expected[index])


def test_a_copy_of_weights_does_not_keep_the_host_waiting() -> None:
    trainer = device_trainer(llama(), 256)
    slots = fill_slots(trainer)
    trainer.arena.begin_snapshot(slots[0])()  # its memory is there from now on
    torch.cuda.set_sync_debug_mode("error")
    try:
        copied = trainer.arena.begin_snapshot(slots[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(copied(), trainer.arena.master[slots[0].used].cpu())
