"""A packed step on the CPU: the update is queued before the host reads losses; a loss that is not finite updates nothing."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.plain.trainer import StepLosses, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.replicas.packed_step import Stepped, step
from worker.replicas.training_job import JobStep


class Recorder(Trainer):
    """Notes when losses begin to be copied, when the update is queued, and when the host waits for losses."""

    def __init__(self, backbone: Backbone, arena: Arena) -> None:
        super().__init__(backbone, arena)
        self.seen: list[str] = []

    def update(self, updates: Sequence[RowUpdate], losses: StepLosses | None = None) -> list[Tensor]:
        self.seen.append("update")
        return super().update(updates, losses)

    def read_later(self, values: Tensor) -> Callable[[], list[float]]:
        self.seen.append("copy")
        read = super().read_later(values)

        def waited() -> list[float]:
            self.seen.append("read")
            return read()

        return waited


def stepped(ruined: int | None, budget: int = 4000) -> tuple[Recorder, list[JobStep], Tensor, Stepped]:
    """One step of three jobs of two rows each, one of which may have weights that are not numbers; and the weights before."""
    torch.manual_seed(0)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Recorder(backbone, Arena(backbone.targets, 120))
    jobs = job_steps(trainer, Rows(tiny.VOCAB), 2, 3)
    if ruined is not None:
        trainer.arena.master[jobs[ruined].slot.used] = float("nan")
    before = trainer.arena.master.clone()
    return trainer, jobs, before, step(trainer, jobs, budget, lambda: None)


def test_the_update_is_queued_before_the_host_waits_for_losses() -> None:
    trainer, jobs, before, result = stepped(None)
    assert trainer.seen == ["copy", "update", "read"]
    assert all(math.isfinite(result.losses[one.job.key]) for one in jobs)
    assert all(not torch.equal(trainer.arena.master[one.slot.used], before[one.slot.used]) for one in jobs)


@pytest.mark.parametrize("budget", [4000, 200], ids=["one pass", "a pass a row"])
def test_a_loss_that_is_not_finite_updates_nobody_else_otherwise_and_itself_not_at_all(budget: int) -> None:
    healthy, jobs, _, _ = stepped(None, budget)
    trainer, _, before, result = stepped(1, budget)
    assert math.isnan(result.losses[jobs[1].job.key])
    assert torch.equal(trainer.arena.master[jobs[1].slot.used].isnan(), before[jobs[1].slot.used].isnan())
    exp_avg, exp_avg_sq = trainer.arena.moments.read(jobs[1].slot.used)
    assert not exp_avg.any()
    assert not exp_avg_sq.any()
    for place in (0, 2):
        assert torch.equal(trainer.arena.master[jobs[place].slot.used], healthy.arena.master[jobs[place].slot.used])
