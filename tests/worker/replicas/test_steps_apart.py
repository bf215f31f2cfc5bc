"""Several steps of a task's jobs between two meetings of its replicas, and steps that are launched ahead of what they wait for:
each job is that of one step after another all the same."""

import math
from types import SimpleNamespace

import pytest

from contract.states import ExitReason
from tests.worker.inside import Inside
from tests.worker.replicas.resumption import adapters
from tests.worker.replicas.test_replica_set import CALM, JOB, device_steps, wide
from tests.worker.replicas.test_sharded_base import PAIRS
from worker.model.plain.trainer import HostMoment, Trainer
from worker.policy.job_record import JobKey
from worker.replicas.device_replica import Replica
from worker.replicas.packed_step import Launched, Stepped
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")


def however_slow(monkeypatch):
    """Steps of this machine are: as many are taken as there are until a job is looked at."""
    for name in ("_APART_SECONDS", "_SHORT_SECONDS", "_SHORT_ALONE_SECONDS", "_LEAD_SECONDS"):
        monkeypatch.setattr(f"worker.executor.step_scheduler.{name}", 1e9)
    monkeypatch.setattr("worker.replicas.ranks.step_window.TELL_SECONDS", 1e9)  # so that a window's end has all its steps


@pytest.mark.parametrize("form", ["sft", "dpo"])
def test_between_two_evaluations_replicas_do_not_wait_for_each_other(fleet, placing, tmp_path, monkeypatch, form):
    """They meet after several steps, and each job is that of one replica, one whose loss stops being finite meanwhile, too."""
    counts, real = [], Replicas.step

    def step(self, jobs, slices, count, on_progress):
        counts.append(count)
        return real(self, jobs, slices, count, on_progress)

    monkeypatch.setattr(Replicas, "step", step)
    however_slow(monkeypatch)
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
    assert counts in ([1, 3, 4, 3], [1, 1, 2, 4, 3]), "to steps 4, 8 and 11; where a job ended, their time is known"
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert reported.ended[1].reason is ExitReason.DIVERGING
    assert reported.ended[1].step == narrow.ended[1].step < 4
    assert device_steps(reported)[0] == 11


@pytest.mark.parametrize("ahead", [False, True])
def test_a_job_that_cannot_go_on_takes_no_further_step_while_the_others_do(monkeypatch, ahead):
    """One for whose third step there is no memory, and one whose second loss is not finite: launched ahead, its third step is
    begun, and that it finds no memory either is not what ends it."""
    keys, taken, read = [JobKey("task", job) for job in range(3)], [], []

    def launch(self, jobs, slices, on_progress, ahead_too, unread):
        taken.append([(job.key.job, number) for job, number in jobs])
        lost = {job.key: "no memory" for job, number in jobs if (job.key.job, number) in ((1, 7), (2, 7))}
        losses = {job.key: math.nan if (job.key.job, number) == (2, 6) else 1.0 for job, number in jobs if job.key not in lost}
        assert ahead_too is ahead
        assert len(unread) == (ahead and len(taken) > 1)
        assert len(read) == max(0, len(taken) - (2 if ahead else 1))

        def values():
            read.append(len(taken))
            return []

        return Launched(Stepped({}, 0.0), 0.0, jobs=list(losses), preferred=losses, read_values=values), lost

    monkeypatch.setattr(Replica, "_launch", launch)
    monkeypatch.setattr(Replica, "_grew", lambda self: False)
    replica, jobs = Replica.__new__(Replica), [(SimpleNamespace(key=key, reference=None), 5) for key in keys]
    replica.trainer = SimpleNamespace(launches_ahead=ahead)
    steps, unrunnable = replica.begin_steps(jobs, None, 4, lambda: None)()
    third = [(0, 7), (1, 7), (2, 7)] if ahead else [(0, 7), (1, 7)]
    assert taken == [[(0, 5), (1, 5), (2, 5)], [(0, 6), (1, 6), (2, 6)], third, [(0, 8)]]
    assert [set(stepped.losses) for stepped in steps] == [set(keys), set(keys), {keys[0]}, {keys[0]}]
    assert unrunnable == {keys[1]: "no memory"}


def test_where_the_losses_of_all_jobs_stop_being_finite_no_step_counts_after_that(monkeypatch):
    keys = [JobKey("task", job) for job in range(2)]

    def launch(self, jobs, slices, on_progress, ahead, unread):
        losses = {job.key: math.nan if number == 6 else 1.0 for job, number in jobs}
        return Launched(Stepped({}, 0.0), 0.0, jobs=list(losses), preferred=losses), {}

    monkeypatch.setattr(Replica, "_launch", launch)
    monkeypatch.setattr(Replica, "_grew", lambda self: False)
    replica, jobs = Replica.__new__(Replica), [(SimpleNamespace(key=key, reference=None), 5) for key in keys]
    replica.trainer = SimpleNamespace(launches_ahead=True)
    steps, unrunnable = replica.begin_steps(jobs, None, 9, lambda: None)()
    assert [[math.isnan(loss) for loss in stepped.losses.values()] for stepped in steps] == [[False] * 2, [True] * 2]
    assert unrunnable == {}


@pytest.mark.parametrize(
    ("seconds", "most"), [(0.02, 5), (0.001, 8), (0.2, 1)], ids=["as long as a host is busy", "eight at most", "at least one"]
)
def test_short_steps_are_launched_further_ahead(monkeypatch, seconds, most):
    """So that a device works on while its host captures a pass. A job whose loss was not finite took none of the steps that
    were launched before that was read; one that finds no memory ends once all before it are read."""
    keys, unread_at, events = [JobKey("task", job) for job in range(3)], [], []

    def launch(self, jobs, slices, on_progress, ahead, unread):
        number = jobs[0][1]
        unread_at.append(len(unread))
        events.append(("launched", number))
        lost = {job.key: "no memory" for job, _ in jobs if number == 20 and job.key.job == 1}
        losses = {job.key: math.nan if (job.key.job, number) == (2, 7) else 1.0 for job, _ in jobs if job.key not in lost}
        assert (2 in [job.key.job for job, _ in jobs]) is (not any(event == ("read", 7) for event in events))

        def values():
            events.append(("read", number))
            return []

        time = HostMoment(number * seconds), HostMoment((number + 1) * seconds)
        return Launched(Stepped({}, 0.0), 0.0, list(losses), preferred=losses, read_values=values, on_device=time), lost

    monkeypatch.setattr(Replica, "_launch", launch)
    monkeypatch.setattr(Replica, "_grew", lambda self: False)
    replica, jobs = Replica.__new__(Replica), [(SimpleNamespace(key=key, reference=None), 0) for key in keys]
    replica.trainer = SimpleNamespace(launches_ahead=True)
    steps, unrunnable = replica.begin_steps(jobs, None, 30, lambda: None)()
    assert max(unread_at) == most
    assert [number for what, number in events if what == "read"] == list(range(30))
    assert events.index(("read", 19)) < events.index(("launched", 21)), "who is lost had not ended before"
    assert unrunnable == {keys[1]: "no memory"}
    took = {key.job: sum(key in stepped.losses for stepped in steps) for key in keys}
    assert took == {0: 30, 1: 20, 2: 8}, "its eighth step has the loss that ends it"


@pytest.mark.parametrize("form", ["sft", "dpo"])
def test_steps_that_are_launched_ahead_are_those_of_one_after_another(fleet, placing, tmp_path, monkeypatch, form):
    """On one replica, too: where a device works by itself several steps are taken in a row. Under dpo none is launched ahead,
    since preferences are to be read before a step."""
    counts, order, real, launch, read = [], [], Replicas.step, Replica._launch, Replica._read

    def step(self, jobs, slices, count, on_progress):
        counts.append(count)
        order.append([])
        return real(self, jobs, slices, count, on_progress)

    monkeypatch.setattr(Replicas, "step", step)
    monkeypatch.setattr(Replica, "_launch", lambda self, *rest: order[-1].append("launch") or launch(self, *rest))
    monkeypatch.setattr(Replica, "_read", lambda self, *rest: order[-1].append("read") or read(self, *rest))
    however_slow(monkeypatch)
    space, spec = {**JOB, "learning_rate": [3e-3, 1e20, 1e-3]}, {"early_exit": CALM, "training": {"max_steps": 11}}
    data = PAIRS if form == "dpo" else None
    if form == "dpo":
        space, spec = space | {"beta": [0.1]}, spec | {"objective": {"type": "dpo"}}
    (one,) = Inside(fleet, tmp_path / "one").run(placing(space, data, **spec))
    assert set(counts) == {1}
    assert order == [["launch", "read"]] * 11
    counts.clear()
    order.clear()
    monkeypatch.setattr(Trainer, "launches_ahead", True)
    (ahead,) = Inside(fleet, tmp_path / "ahead").run(placing(space, data, **spec))
    if form == "sft":
        most = order[counts.index(max(counts))]
        assert most[:3] == ["launch", "launch", "read"], "how far ahead goes by how long a step takes"
        assert most.count("read") == most.count("launch") == max(counts)
    else:
        assert order == [["launch", "read"]] * 11
    assert ahead.curves == one.curves
    assert adapters(ahead) == adapters(one) != {}
    assert ahead.ended[1].reason is ExitReason.DIVERGING
    assert ahead.ended[1].step == one.ended[1].step < 4


def test_a_job_that_diverged_and_whose_next_step_cannot_be_taken_has_diverged(fleet, placing, tmp_path, monkeypatch):
    """The next step was begun before the loss was read; its neighbour goes on."""
    monkeypatch.setattr(Trainer, "launches_ahead", True)
    however_slow(monkeypatch)
    refused = []

    def refusal(job_step):
        if job_step.job.key.job == 1 and job_step.number >= diverged:
            refused.append(job_step.number)
            return "refused"
        return None

    spec = {"early_exit": {"policy": "none", "eval_every": 11}, "training": {"max_steps": 11}}
    space, diverged = {**JOB, "learning_rate": [3e-3, 1e20]}, 99
    (alone,) = Inside(fleet, tmp_path / "alone").run(placing(space, **spec))
    diverged = alone.ended[1].step  # the number of the step after it
    assert diverged > 1, "the first step is a window of its own"
    monkeypatch.setattr("worker.replicas.device_replica.update_refusal", refusal)
    (reported,) = Inside(fleet, tmp_path / "refused").run(placing(space, **spec))
    assert refused
    assert reported.ended[1].reason is ExitReason.DIVERGING
    assert reported.curves == alone.curves
    assert reported.step[0] == 11


def test_a_command_is_heard_within_a_step_of_one_replica(fleet, placing, tmp_path, monkeypatch):
    heard, windows, launched, launch, step = [], [], [], Replica._launch, Replicas.step
    monkeypatch.setattr(Trainer, "launches_ahead", True)
    however_slow(monkeypatch)
    executors = []

    def command(self, *rest):
        launched.append(None)
        if len(launched) == 5:
            executors[0]._inbox.put(lambda: heard.append(len(launched)))
        return launch(self, *rest)

    def window(self, jobs, slices, count, on_progress):
        steps, unrunnable = step(self, jobs, slices, count, on_progress)
        windows.append((count, len(steps)))
        return steps, unrunnable

    monkeypatch.setattr(Replica, "_launch", command)
    monkeypatch.setattr(Replicas, "step", window)
    spec = {"early_exit": {"policy": "none", "eval_every": 40}, "training": {"max_steps": 40, "epochs": 10}}
    placement = placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **spec)
    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=executors.append)
    assert heard == [5]
    assert (39, 4) in windows, "the first window is of one step"
    assert sum(took for _, took in windows) == 40
    assert reported.step == {0: 40, 1: 40}
