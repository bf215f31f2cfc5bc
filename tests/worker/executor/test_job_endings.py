"""A job that ends waits for its weights to be read back from files; the others on its executor take their steps meanwhile."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract.messages.report_messages import AdapterKept
from tests.worker.corpus import rows
from tests.worker.inside import Inside, resumed
from worker.adapters import weights_copies
from worker.executor.evaluation.job_endings import JobEndings
from worker.executor.training_loop import Executor
from worker.pipe_messages import Detach, PlacementEnded, Stop
from worker.replicas.ranks.rank_group import LoadedBase

pytestmark = pytest.mark.usefixtures("measured_once")

SPACE = {"learning_rate": [1e-2, 3e-3], "rank": [8], "batch_size": [4]}
SHORT = {"early_exit": {"policy": "none", "eval_every": 2}, "training": {"max_steps": 8}}
LONG = {"early_exit": {"policy": "none", "eval_every": 50}, "training": {"max_steps": 100}}
PATIENCE, STEPS, READER = 60.0, 3, "weights read back"


def files_of(reported: Any) -> dict[int, list[str]]:
    return {event.job: [file.sha256 for file in event.manifest.files] for event in reported.of(AdapterKept)}


class SlowDisk:
    """The first file that is read for a job that ends makes its reader wait until `go_on` is set: at the latest once the other
    placement has reported STEPS steps beyond those it had taken then."""

    def __init__(self, patch: pytest.MonkeyPatch, fleet: Any, other: str, when_begun: Callable[[], None]) -> None:
        self.go_on, self.waited, self.executor = threading.Event(), list[bool](), list[Executor]()
        self.copies: Any = None
        self._until: int | None = None
        known, read = LoadedBase.capacities, weights_copies._WeightsFile.read
        patch.setattr(LoadedBase, "capacities", lambda *asked: tuple(replace(has, lowest_bytes=0) for has in known(*asked)))

        def slow(file: Any) -> Any:
            if self._until is None and threading.current_thread().name == READER:
                executor = self.executor[0]
                self.copies = executor._replicas.first.adapters._lowest
                self._until = STEPS + max(run.step for run in executor._attached[other].runs)
                when_begun()
                self.waited.append(self.go_on.wait(PATIENCE))
            return read(file)

        patch.setattr(weights_copies._WeightsFile, "read", slow)

        def watch(reported: Any, report: Any) -> None:
            told = max(reported.step.values(), default=0)
            if reported.placement.placement_id == other and self._until is not None and told >= self._until:
                self.go_on.set()

        fleet.on_report = watch

    def all_given_back(self) -> bool:
        """Once those that read are through."""
        for thread in threading.enumerate():
            if thread.name == READER:
                thread.join(PATIENCE)
        files = weights_copies.resource.getrlimit(weights_copies.resource.RLIMIT_NOFILE)[0] // weights_copies._SHARE
        return not self.copies._waiting and self.copies._files_left == files


@pytest.fixture
def alone(fleet, placing, tmp_path):
    """What both tasks come to where nothing lies in files, the short one first."""
    return [Inside(fleet, tmp_path / f"alone-{number}").run(one)[0] for number, one in enumerate(both(placing))]


def both(placing: Any) -> list[Any]:
    return [placing(SPACE, **SHORT), placing(SPACE, rows(30, seed=3), **LONG)]


def test_others_step_while_weights_are_read_back(fleet, placing, tmp_path, monkeypatch, alone):
    short, long = both(placing)
    disk = SlowDisk(monkeypatch, fleet, long.placement_id, lambda: None)
    found = Inside(fleet, tmp_path / "node").run(short, long, prepare=disk.executor.append, together=True)
    assert disk.waited == [True]
    for reported, expected in zip(found, alone, strict=True):
        assert reported.curves == expected.curves
        assert files_of(reported) == files_of(expected)
        assert len(files_of(reported)) == 2
    assert disk.all_given_back()


@pytest.mark.parametrize("how", ["cancelled", "paused", "stopped", "killed"])
def test_a_task_that_goes_while_its_weights_are_read_back_hurts_nobody(fleet, placing, tmp_path, monkeypatch, alone, how):
    short, long = both(placing)

    def interrupt() -> None:
        if how in ("cancelled", "paused"):
            command: Detach | Stop = Detach(placement_id=short.placement_id, keep=how == "paused")
        else:
            command = Stop(seconds=PATIENCE if how == "stopped" else 0)
        disk.executor[0].handle_command(command)

    def tell(news: Any) -> None:
        if how == "cancelled" and isinstance(news, PlacementEnded) and news.placement_id == short.placement_id:
            disk.go_on.set()

    finish, finished = JobEndings.finish, list[bool]()

    def finishing(endings: JobEndings, *parts: Any) -> None:
        finished.append(bool(endings))
        if how == "stopped":
            disk.go_on.set()
        finish(endings, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(JobEndings, "finish", finishing)
        disk = SlowDisk(patch, fleet, long.placement_id, interrupt)
        inside = Inside(fleet, tmp_path / "node", worker_checkpoint_seconds=0.01)
        inside.on_news = tell
        first, second = inside.run(short, long, prepare=disk.executor.append, together=True)
        disk.go_on.set()
        assert disk.all_given_back() or how in ("stopped", "killed")
    fleet.on_report = lambda reported, report: None
    if how in ("cancelled", "paused"):
        assert (second.curves, files_of(second)) == (alone[1].curves, files_of(alone[1]))
    else:
        assert finished == [True], "both wait for their weights"
    if how == "stopped":
        assert second.checkpoints.keys() == {0, 1}
    if how == "cancelled":
        assert files_of(first) == {}
    elif how == "killed":
        assert files_of(first) == {}
        (again,) = Inside(fleet, tmp_path / "again").run(resumed(first, "again"))
        assert files_of(again) == files_of(alone[0])
    else:
        assert files_of(first).items() <= files_of(alone[0]).items()
        assert len(files_of(first)) == 2
