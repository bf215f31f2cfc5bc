"""A packed step on the CPU: the update is queued before the host reads losses; a loss that is not finite updates nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import HostMoment, LossSum, StepLosses, Trainer
from worker.model.row_optimizer import RowUpdate
from worker.policy.activations import Activations
from worker.replicas.dpo_reference import Reference
from worker.replicas.packed_step import Launched, Stepped, launch, step
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep


class Recorder(Trainer):
    """Notes when losses begin to be copied, when the update is queued, and when the host waits for losses. not_finite: the
    pass and the segment whose loss is told to be no number, though its weights and gradients are sound."""

    def __init__(self, backbone: Backbone, arena: Arena) -> None:
        super().__init__(backbone, arena)
        self.seen: list[str] = []
        self.not_finite: tuple[int, int] | None = None
        self.gradient = torch.empty(0)  # of the last step
        self.updates: list[RowUpdate] = []
        self.recomputed: list[bool] = []  # of each pass

    def train(self, segments: Sequence[Segment], recompute: bool = False, shared: bool = False) -> list[LossSum]:
        self.recomputed.append(recompute)
        losses = super().train(segments, recompute, shared)
        if self.not_finite is not None and self.not_finite[0] == self.forwards:
            place = self.not_finite[1]
            losses[place] = replace(losses[place], total=losses[place].total * float("nan"))
        return losses

    def update(self, updates: Sequence[RowUpdate], losses: StepLosses | None = None) -> list[Tensor]:
        self.seen.append("update")
        self.gradient = self.arena.grad.clone()
        self.updates += updates
        return super().update(updates, losses)

    def read_later(self, values: Tensor) -> Callable[[], list[float]]:
        self.seen.append("copy")
        read = super().read_later(values)

        def waited() -> list[float]:
            self.seen.append("read")
            return read()

        return waited


def with_dropout(one: JobStep, dropout: float) -> JobStep:
    return replace(one, job=replace(one.job, config=one.job.config.model_copy(update={"dropout": dropout})))


def stepped(ruined: int | None, budget: int = 4000, dropout: float = 0.0) -> tuple[Recorder, list[JobStep], Tensor, Stepped]:
    """One step of three jobs of two rows each, one of which may have weights that are not numbers; and the weights before."""
    torch.manual_seed(0)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Recorder(backbone, Arena(backbone.targets, 120))
    jobs = [with_dropout(one, dropout) for one in job_steps(trainer, Rows(tiny.VOCAB), 2, 3)]
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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_step_in_pieces_is_the_step_in_one_pass(dropout: float) -> None:
    """Each row draws the same dropout, losses and gradients add up, and the work is counted once."""
    whole, jobs, _, one_pass = stepped(None, 4000, dropout)
    pieces, _, _, several = stepped(None, 200, dropout)
    assert (one_pass.passes, several.passes) == (1, 6)
    torch.testing.assert_close(pieces.gradient, whole.gradient, rtol=1e-4, atol=1e-7)
    for key, loss in one_pass.losses.items():
        assert several.losses[key] == pytest.approx(loss, rel=1e-5)
    (work,), (split,) = one_pass.work.values(), several.work.values()
    assert (work.tokens, work.adapter_rows) == (split.tokens, split.adapter_rows)
    assert work.adapter_rows == sum(one.job.config.rank for one in jobs)


def test_a_steps_gradient_is_of_the_mean_over_its_labels() -> None:
    trainer, jobs, before, _ = stepped(None)
    found = trainer.gradient
    trainer.arena.master.copy_(before)
    for one in jobs:
        rows = one.job.data.train
        examples = [rows.sequences[place] for place in rows.places(one.job.order.batch(0))]
        trainer.train([Segment(one.slot, examples)])
        labels = sum(example.labels for example in examples)
        torch.testing.assert_close(found[one.slot.used] * labels, trainer.arena.grad[one.slot.used], rtol=1e-4, atol=1e-5)


def test_an_update_has_the_rate_of_its_step_and_counts_from_one() -> None:
    trainer, jobs, _, _ = stepped(None)
    config = jobs[0].job.config.model_copy(update={"schedule": "linear", "lr_warmup_ratio": 0.1, "weight_decay": 0.3})
    job = replace(jobs[0].job, config=config, total_steps=40, max_grad_norm=0.5)
    for number, part in ((0, 1 / 4), (3, 1), (22, 1 / 2)):
        step(trainer, [replace(jobs[0], job=job, number=number)], 4000, lambda: None)
        made = trainer.updates[-1]
        assert made.learning_rate == pytest.approx(part * 1e-4)
        assert (made.slot, made.weight_decay, made.step, made.max_grad_norm) == (jobs[0].slot, 0.3, number + 1, 0.5)


@pytest.mark.parametrize("place", [0, 2])
def test_a_pass_is_recomputed_where_any_of_its_jobs_is(place: int) -> None:
    trainer, jobs, _, _ = stepped(None)
    jobs[place] = replace(jobs[place], job=replace(jobs[place].job, activations=Activations(True, "memory")))
    trainer.recomputed.clear()
    step(trainer, jobs, 4000, lambda: None)
    step(trainer, jobs, 200, lambda: None)
    assert trainer.recomputed[0] is True
    assert sum(trainer.recomputed[1:]) == 2, "of passes of a row, those of that job alone"


def test_preferences_of_all_jobs_are_a_placements_work() -> None:
    trainer, jobs, _, plain = stepped(None)
    for place, one in enumerate(jobs):
        job = one.job
        reference = Reference([0.0] * len(job.data.train), [])
        jobs[place] = replace(one, job=replace(job, config=job.config.model_copy(update={"beta": 0.1}), reference=reference))
    result = step(trainer, jobs, 4000, lambda: None)
    assert set(result.preferences) == {one.job.key for one in jobs}
    assert result.preferring == {placement: work.tokens for placement, work in plain.work.items()}


def launched(ahead: bool, not_finite: tuple[int, int] | None = None) -> tuple[Recorder, list[JobStep], list[Stepped]]:
    """Three steps of three jobs, the second and third launched before the losses of the first are read, or after."""
    torch.manual_seed(0)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Recorder(backbone, Arena(backbone.targets, 120))
    trainer.not_finite = not_finite
    jobs = job_steps(trainer, Rows(tiny.VOCAB), 2, 3)

    def begin(number: int, *unread: Launched) -> Launched:
        steps = StepInProgress([replace(one, number=number) for one in jobs], 4000)
        return launch(trainer, {steps: None}, 4000, lambda: None, ahead, unread)

    first = begin(0)
    if ahead:
        second = begin(1, first)
        third = begin(2, first, second)
        return trainer, jobs, [first.read(), second.read(), third.read()]
    read = first.read()
    return trainer, jobs, [read, begin(1).read(), begin(2).read()]


def test_a_step_that_is_launched_ahead_is_the_same_step() -> None:
    (ahead, _, found), (after, _, expected) = launched(True), launched(False)
    assert ahead.seen == ["copy", "update"] * 3 + ["read"] * 3
    assert after.seen == ["copy", "update", "read"] * 3
    assert [stepped.losses for stepped in found] == [stepped.losses for stepped in expected]
    assert torch.equal(ahead.arena.master, after.arena.master)


def test_the_time_of_steps_that_are_launched_ahead_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late they are read. That of a step by itself is the host's: nothing waits for its update."""
    clock = iter((3.0, 5.0, 5.5, 9.5, 9.5, 10.0))
    monkeypatch.setattr(Recorder, "moment", lambda self: HostMoment(next(clock)))
    _, _, (first, second, third) = launched(True)
    seconds = [first.seconds, second.seconds, third.seconds]
    assert seconds == [2.0, 4.0, 0.5], "each from its launch, or the end of what came before, to its update"
    assert second.work["gsm8k"].device_seconds == 4.0
    _, _, steps = launched(False)
    assert all(stepped.seconds > 0 for stepped in steps)
    assert list(clock) == []


def test_a_job_whose_loss_was_not_finite_is_not_updated_by_steps_that_were_launched_ahead() -> None:
    """Its weights are sound, so that the losses of the next steps are numbers, and nothing else would say so."""
    trainer, jobs, (first, *later) = launched(True, not_finite=(1, 1))
    healthy, _, _ = launched(False)
    assert math.isnan(first.losses[jobs[1].job.key])
    assert all(math.isfinite(stepped.losses[jobs[1].job.key]) for stepped in later)
    exp_avg, _ = trainer.arena.moments.read(jobs[1].slot.used)
    assert not exp_avg.any(), "no step updated it"
    for place in (0, 2):
        assert torch.equal(trainer.arena.master[jobs[place].slot.used], healthy.arena.master[jobs[place].slot.used])


def test_a_job_that_ended_before_a_step_is_left_out_of_it() -> None:
    torch.manual_seed(0)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Recorder(backbone, Arena(backbone.targets, 120))
    jobs = job_steps(trainer, Rows(tiny.VOCAB), 2, 3)
    keys = [one.job.key for one in jobs]
    result = launch(trainer, {StepInProgress(jobs, 4000): None}, 4000, lambda: None).read(left_out={keys[1]})
    assert list(result.losses) == list(result.accuracies) == [keys[0], keys[2]]
    assert result.work["gsm8k"].tokens == sum(
        one.job.data.train.lengths[row] for one in jobs for row in one.job.order.batch(one.number)
    ), "its tokens were trained"
