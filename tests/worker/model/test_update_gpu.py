"""The optimizer step on a GPU: nothing waits for the device, and an adapter that is ruined keeps its weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model.device_case import device_trainer, examples, fill_slots, llama
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import StepLosses
from worker.model.row_optimizer import RowUpdate
from worker.replicas.packed_step import Launched, Stepped, launch, step
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graph_tokens", [0, 4096])
def test_nothing_in_a_step_waits_for_the_device(graph_tokens: int) -> None:
    trainer = device_trainer(llama())
    trainer.graph_tokens = graph_tokens
    slots = fill_slots(trainer)

    def take(number: int) -> None:
        trainer.train([Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)])
        trainer.update([RowUpdate(slot, 1e-3, 0.0, number, 1.0) for slot in slots])

    take(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        take(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


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


def test_a_step_is_launched_while_the_device_is_at_the_last_and_is_the_same() -> None:
    found = []
    for ahead in (True, False):
        trainer = device_trainer(llama(), 256)
        torch.manual_seed(0)
        jobs = job_steps(trainer, Rows(300), 1, 4)

        def begin(
            number: int, before: Launched | None, trainer: DeviceTrainer = trainer, jobs: list[JobStep] = jobs
        ) -> Launched:
            steps = StepInProgress([replace(one, number=number) for one in jobs], 1 << 16)
            return launch(trainer, {steps: None}, 1 << 16, lambda: None, before)

        first = begin(0, None)
        losses = [first.read().losses]
        if ahead:
            torch.cuda.set_sync_debug_mode("error")
            try:
                launched = [second := begin(1, None), begin(2, second)]
            finally:
                torch.cuda.set_sync_debug_mode("default")
            losses += [one.read().losses for one in launched]
        else:
            losses += [begin(number, None).read().losses for number in (1, 2)]
        found.append((losses, trainer.arena.master.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


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
