"""Steps between two meetings of replicas: told meanwhile, and cut short where a command or a thread waits for the meeting."""

import os
import signal
import threading
import time

import pytest

from tests.worker.inside import Inside
from tests.worker.processes import gone
from tests.worker.replicas.ahead_rank import launch_ahead
from tests.worker.replicas.resumption import adapters
from tests.worker.replicas.test_replica_set import JOB, wide
from worker.executor.artifact_uploader import ArtifactUploader
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.executor.step_counter import StepCounter
from worker.model.plain.trainer import Trainer
from worker.replicas.device_replica import Replica
from worker.replicas.ranks.call_turns import CallTurns
from worker.replicas.ranks.rank_process import RankLost, RankProcess
from worker.replicas.ranks.step_window import StepWindow
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")

STEPS, AT = 40, 3  # of each job; those of rank 0 in a window after which something waits
SPEC = {"early_exit": {"policy": "none", "eval_every": STEPS}, "training": {"max_steps": STEPS, "epochs": 10}}


class Watched:
    """What an executor with two ranks does. act: called once, by rank 0 after AT steps of a window. holds: until then rank 1
    stands still in each window but the first, so that it is not through with it first, however slow rank 0 is."""

    def __init__(self, fleet, folder, monkeypatch) -> None:
        self.inside, self.executor, self.act = Inside(fleet, folder), None, lambda: None
        self.windows: list[tuple[int, int]] = []  # steps that were to be taken, and were
        self.paused: list[int | None] = []
        self.called: list[str] = []
        self.acted: int | None = None  # in which window
        self.next_pause = 0  # that followed
        self.holds = False
        self._taken = 0  # in this window, by rank 0
        for name in ("_APART_SECONDS", "_SHORT_SECONDS", "_LEAD_SECONDS"):  # however slow these steps are
            monkeypatch.setattr(f"worker.executor.step_scheduler.{name}", 1e9)
        monkeypatch.setattr("worker.replicas.ranks.step_window.TELL_SECONDS", 1e9)  # so that a window's end has all its steps
        launch, steps, send = Replica._launch, Replicas.step, RankProcess._send
        pause, paused_after = RankProcess.pause, RankProcess.paused_after

        def one(replica, *order):
            result = launch(replica, *order)
            self._taken += 1
            if self._taken == AT and self.acted is None:
                self.acted, self.next_pause = len(self.windows), len(self.paused)
                self.act()
            return result

        def window(replicas, jobs, slices, count, on_progress):
            self._taken = 0
            taken, unrunnable = steps(replicas, jobs, slices, count, on_progress)
            self.windows.append((count, len(taken)))
            return taken, unrunnable

        def go(rank):
            pause(rank)
            if self.holds:
                os.kill(rank.pid, signal.SIGCONT)

        def after(rank):
            self.paused.append(paused_after(rank))
            return self.paused[-1]

        def sent(rank, name, *more, **how):
            self.called.append(name)
            kept = send(rank, name, *more, **how)
            if name == "steps" and self.windows and self.holds and self.acted is None:
                os.kill(rank.pid, signal.SIGSTOP)
            return kept

        monkeypatch.setattr(Replica, "_launch", one)
        monkeypatch.setattr(Replicas, "step", window)
        monkeypatch.setattr(RankProcess, "pause", go)
        monkeypatch.setattr(RankProcess, "paused_after", after)
        monkeypatch.setattr(RankProcess, "_send", sent)

    def run(self, placement):
        (reported,) = self.inside.run(placement, prepare=lambda executor: setattr(self, "executor", executor))
        return reported

    @property
    def rank(self) -> RankProcess:
        return self.executor._replicas.loaded.ranks[0]

    def steps(self) -> set[int]:
        """Of all jobs, as the loop knows them."""
        return {run.step for task in self.executor._attached.open for run in task.runs}


@pytest.fixture
def watched(fleet, tmp_path, monkeypatch):
    return Watched(fleet, tmp_path / "wide", monkeypatch)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_command_is_heard_within_a_step_and_all_jobs_are_at_one_step_then(
    fleet, placing, tmp_path, watched, monkeypatch, ahead
):
    if ahead:
        launch_ahead(monkeypatch)
    placement, heard = placing({**JOB, "learning_rate": [3e-3, 1e-3, 1e-2]}, **SPEC), []
    watched.act, watched.holds = lambda: watched.executor._inbox.put(lambda: heard.extend(watched.steps())), True
    reported = watched.run(wide(placement))
    (count, took), before = watched.windows[watched.acted], sum(took for _, took in watched.windows[: watched.acted])
    assert took == max(AT, watched.paused[watched.next_pause]) < count == STEPS - before
    assert heard == [before + took]
    assert sum(took for _, took in watched.windows) == STEPS
    monkeypatch.setattr(Trainer, "launches_ahead", False)
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placement)
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_command_is_heard_while_rank_0_has_no_job(placing, watched, monkeypatch, ahead):
    """Its one job diverges within a window, which ends, and it is heard in the next one."""
    if ahead:
        launch_ahead(monkeypatch)
    await_others, asked, watched.holds = StepWindow.await_others, [], True

    def wait(window, taken):
        if len(taken or ()) < window._count > 1 and len(asked) < 2:
            asked.append(len(taken or ()))
            watched.executor._inbox.put(lambda: None)  # and rank 1 goes on once it is asked to pause
        else:
            os.kill(watched.rank.pid, signal.SIGCONT)
        await_others(window, taken)

    monkeypatch.setattr(StepWindow, "await_others", wait)
    reported = watched.run(wide(placing({**JOB, "learning_rate": [1e20, 1e-3]}, **SPEC)))
    assert asked[0] > asked[1] == 0
    assert [took < count for count, took in watched.windows].count(True) == 2
    assert max(reported.step.values()) == STEPS


@pytest.mark.parametrize("ahead", [False, True])
def test_a_command_is_heard_while_another_rank_has_no_job(placing, watched, monkeypatch, ahead):
    """Its one job diverges within the window."""
    if ahead:
        launch_ahead(monkeypatch)
    watched.act = lambda: watched.executor._inbox.put(lambda: None)
    reported = watched.run(wide(placing({**JOB, "learning_rate": [1e-3, 1e20]}, **SPEC)))
    count, took = watched.windows[watched.acted]
    assert took < count
    assert max(reported.step.values()) == STEPS


def test_a_checkpoint_is_taken_when_it_is_due(placing, watched, monkeypatch):
    def due() -> None:
        (task,) = watched.executor._attached.open
        task.checkpoint_due = 0.0

    taken, keep = [], ArtifactUploader.keep_checkpoint

    def kept(uploader, task, snapshots, stored):
        taken.append({snapshot.progress.step for snapshot in snapshots})
        keep(uploader, task, snapshots, stored)

    monkeypatch.setattr(ArtifactUploader, "keep_checkpoint", kept)
    watched.act, watched.holds = due, True
    watched.run(wide(placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **SPEC)))
    (count, took), before = watched.windows[watched.acted], sum(took for _, took in watched.windows[: watched.acted])
    assert took < count
    assert taken == [{before + took}], "it is taken once"


def test_a_thread_that_begins_a_call_takes_no_step_away(placing, watched, monkeypatch, fleet, tmp_path):
    """It waits for its turn, and has it before the loop has looked at what the rank has told."""

    def act() -> None:
        thread.start()
        while not watched.rank.awaited:
            time.sleep(0.001)

    def release(turns) -> None:
        real(turns)
        if thread.is_alive() and threading.current_thread() is not thread:
            thread.join(5.0)

    thread, real = threading.Thread(target=lambda: watched.rank.call("tensors", [], False)), CallTurns.release
    launch_ahead(monkeypatch)
    monkeypatch.setattr("worker.replicas.ranks.step_window.TELL_SECONDS", 0.0)
    monkeypatch.setattr(CallTurns, "release", release)
    watched.act, placement = act, placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **SPEC)
    reported = watched.run(wide(placement))
    assert not thread.is_alive()
    monkeypatch.setattr(Trainer, "launches_ahead", False)
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placement)
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}


def test_a_thread_that_waits_to_call_a_rank_is_next(placing, watched):
    def call() -> None:
        watched.rank.call("tensors", [], False)

    def begin() -> None:
        thread.start()
        begun.append(len(watched.called))
        while not watched.rank.awaited:
            time.sleep(0.001)

    thread, watched.act, watched.holds, begun = threading.Thread(target=call), begin, True, []
    watched.run(wide(placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **SPEC)))
    thread.join()
    assert watched.called[begun[0] :][:2] == ["tensors", "steps"]
    count, took = watched.windows[watched.acted]
    assert took < count


@pytest.mark.parametrize("moment", ["pause", "go_on"])
def test_a_rank_that_is_killed_around_a_pause_ends_the_executor(placing, watched, monkeypatch, moment):
    real, pids = getattr(RankProcess, moment), []

    def kill(rank, *steps):
        pids.append(rank.pid)
        os.kill(rank.pid, signal.SIGKILL)
        real(rank, *steps)

    monkeypatch.setattr(RankProcess, moment, kill)
    watched.act, watched.holds = lambda: watched.executor._inbox.put(lambda: None), True
    with pytest.raises(RankLost, match=r"rank 1 \(pid \d+\) ended with -9"):
        watched.run(wide(placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **SPEC)))
    assert gone(pids[0])


def test_a_rank_that_stands_still_when_it_is_to_wait_is_watched(placing, watched, monkeypatch):
    real, pids = RankProcess.pause, []

    def stop(rank):
        pids.append(rank.pid)
        watched.holds = False  # and rank 1 goes on standing still
        monkeypatch.setattr(rank, "_on_silence", silent)
        real(rank)

    def silent(seconds):
        raise LeaseNotHeld(f"silent for {seconds} s")

    monkeypatch.setattr(RankProcess, "pause", stop)
    watched.act, watched.holds = lambda: watched.executor._inbox.put(lambda: None), True
    with pytest.raises(LeaseNotHeld, match="silent for"):
        watched.run(wide(placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **SPEC)))
    assert len(watched.windows) == watched.acted
    assert watched.paused == [], "it never said that it waits"
    assert gone(pids[0])


@pytest.mark.parametrize("rates", [[3e-3, 1e-3, 1e-2], [1e20, 1e-3], [1e-3, 1e20]])
def test_steps_told_meanwhile_are_those_of_one_after_another(fleet, placing, tmp_path, watched, monkeypatch, rates):
    """One job's loss stops being finite, on the first replica or on the second."""
    told, count, step, within, steps_in_all = [], StepCounter.count, Replicas.step, [False], StepWindow.steps_in_all

    def counted(counter, steps):
        told.extend(steps if within[-1] else [])
        count(counter, steps)

    def window(replicas, *order):
        within.append(True)
        try:
            return step(replicas, *order)
        finally:
            within.pop()

    def in_step(running, begun, taken):
        """However slow the other rank is: it has told of as many steps, or is through."""
        for rank in running._ranks:
            while len(rank.taken) < begun - 1 and not rank.answers_within(0.01):
                pass
        return steps_in_all(running, begun, taken)

    launch_ahead(monkeypatch)
    monkeypatch.setattr(StepWindow, "steps_in_all", in_step)
    monkeypatch.setattr(StepCounter, "count", counted)
    monkeypatch.setattr(Replicas, "step", window)
    monkeypatch.setattr("worker.replicas.ranks.step_window.TELL_SECONDS", 0.0)
    placement = placing({**JOB, "learning_rate": rates}, **SPEC)
    reported = watched.run(wide(placement))
    assert len(told) >= (STEPS // 2 if len(rates) == 3 else 1), "the last steps of each window are not"
    monkeypatch.setattr(StepCounter, "count", count)
    monkeypatch.setattr(Trainer, "launches_ahead", False)
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placement)
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert [reported.ended[job].model_dump() for job in range(len(rates))] == [
        narrow.ended[job].model_dump() for job in range(len(rates))
    ]
    assert max(reported.step.values()) == STEPS
