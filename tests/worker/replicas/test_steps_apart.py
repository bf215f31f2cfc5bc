"""Several steps of a task's jobs between two meetings of its replicas: each job is that of one replica all the same."""

import math
from types import SimpleNamespace

import pytest

from contract.states import ExitReason
from tests.worker.inside import Inside
from tests.worker.replicas.resumption import adapters
from tests.worker.replicas.test_replica_set import CALM, JOB, device_steps, wide
from tests.worker.replicas.test_sharded_base import PAIRS
from worker.policy.job_record import JobKey
from worker.replicas.device_replica import Replica
from worker.replicas.packed_step import Stepped
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")


@pytest.mark.parametrize("form", ["sft", "dpo"])
def test_between_two_evaluations_replicas_do_not_wait_for_each_other(fleet, placing, tmp_path, monkeypatch, form):
    """They meet after several steps, and each job is that of one replica, one whose loss stops being finite meanwhile, too."""
    counts, real = [], Replicas.step

    def step(self, jobs, slices, count, on_progress):
        counts.append(count)
        return real(self, jobs, slices, count, on_progress)

    monkeypatch.setattr(Replicas, "step", step)
    monkeypatch.setattr("worker.executor.step_scheduler._APART_SECONDS", 60.0)  # however slow these steps are
    space, spec = {**JOB, "learning_rate": [3e-3, 1e20, 1e-3]}, {"early_exit": CALM, "training": {"max_steps": 11}}
    data = PAIRS if form == "dpo" else None
    if form == "dpo":
        space, spec = space | {"beta": [0.1]}, spec | {"objective": {"type": "dpo"}}
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placing(space, data, **spec))
    assert set(counts) == {1}
    counts.clear()
    (reported,) = Inside(fleet, tmp_path / "wide").run(wide(placing(space, data, **spec)))
    assert counts[0] == 1, "which says how long a step takes"
    assert sum(counts) == 11
    assert counts in ([1, 3, 1, 3, 3], [1, 1, 2, 4, 3]), "to steps 4, 8 and 11, and anew where a job has ended"
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert reported.ended[1].reason is ExitReason.DIVERGING
    assert reported.ended[1].step == narrow.ended[1].step < 4
    assert device_steps(reported)[0] == 11


def test_a_job_that_cannot_go_on_takes_no_further_step_while_the_others_do(monkeypatch):
    """One for whose third step there is no memory, and one whose second loss is not finite."""
    keys, taken = [JobKey("task", job) for job in range(3)], []

    def step(self, jobs, slices, on_progress):
        taken.append([(job.key.job, number) for job, number in jobs])
        lost = {job.key: "no memory" for job, number in jobs if (job.key.job, number) == (1, 7)}
        losses = {job.key: math.nan if (job.key.job, number) == (2, 6) else 1.0 for job, number in jobs if job.key not in lost}
        return Stepped(losses, 0.1), lost

    monkeypatch.setattr(Replica, "_step", step)
    replica, jobs = Replica.__new__(Replica), [(SimpleNamespace(key=key), 5) for key in keys]
    steps, unrunnable = replica.begin_steps(jobs, None, 4, lambda: None)()
    assert taken == [[(0, 5), (1, 5), (2, 5)], [(0, 6), (1, 6), (2, 6)], [(0, 7), (1, 7)], [(0, 8)]]
    assert [set(stepped.losses) for stepped in steps] == [set(keys), set(keys), {keys[0]}, {keys[0]}]
    assert unrunnable == {keys[1]: "no memory"}
