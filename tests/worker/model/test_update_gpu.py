"""The optimizer step on a GPU: nothing waits for the device, and an adapter that is ruined keeps its weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model.device_case import device_trainer, examples, fill_slots, llama
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import StepLosses
from worker.model.row_optimizer import RowUpdate
from worker.replicas.packed_step import Stepped, step

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
