"""Answer sessions on a daemon with its real children: who is killed while it loads, who takes the executor over."""

import os
import signal
from collections.abc import Iterator

import pytest

from contract.messages.placement_messages import AnswersOnly, BaseModelRef
from contract.states import RequeueReason
from tests.worker.executor.completion_work import work
from tests.worker.fleet import Fleet
from tests.worker.processes import gone
from tests.worker.running_node import LONG, SPACE, Placing, trains


def asking(base: BaseModelRef, key: str) -> AnswersOnly:
    lease = {"placement_id": key, "fence": 1, "token": f"token-{key}", "lease_seconds": 900.0}
    return AnswersOnly(**lease, device_indexes=[0], base=base)


def said(fleet: Fleet, id: str) -> str:
    """The text of this request's answer, which must come."""
    with fleet.lock:
        fleet.asked.append(work(id))
    fleet.until(lambda: any(piece.over for piece in fleet.pieces.get(id, [])))
    assert fleet.pieces[id][-1].failed is None
    return "".join(choice.text for piece in fleet.pieces[id] for choice in piece.choices)


def phases(fleet: Fleet, key: str) -> list[str]:
    return [pulse.phase for beat in fleet.heartbeats for pulse in beat.pulses if pulse.placement_id == key]


class TestOneNode:
    """One daemon through all of it. Each test leaves it holding nothing."""

    @pytest.fixture
    def fleet(self, placed: tuple[Fleet, Placing]) -> Iterator[Fleet]:
        fleet = placed[0]
        fleet.lost.clear()
        yield fleet
        fleet.hold(None)
        for placement in fleet.desired:
            fleet.end(placement.placement_id)
        told = len(fleet.heartbeats)
        fleet.until(lambda: any(not beat.pulses for beat in fleet.heartbeats[told:]))

    @pytest.fixture
    def placing(self, placed: tuple[Fleet, Placing]) -> Placing:
        return placed[1]

    def test_one_killed_while_it_loads_is_told_and_the_next_one_answers(self, fleet, node, tiny_base):
        victim = node.child("worker.executor")
        os.kill(victim, signal.SIGSTOP)  # it never gets to load
        fleet.hold(asking(tiny_base, "asked1"))
        fleet.until(lambda: "loading" in phases(fleet, "asked1"))
        os.kill(victim, signal.SIGKILL)
        fleet.until(lambda: fleet.lost)
        (lost,) = fleet.lost
        assert (lost.reason, lost.fences) == (RequeueReason.EXECUTOR_LOST, {"asked1": 1})
        assert "ended with -9" in lost.detail
        fleet.hold(asking(tiny_base, "asked2"))
        assert said(fleet, "first")
        fleet.until(lambda: "training" in phases(fleet, "asked2"))  # its word for a base that is loaded

    def test_a_task_of_its_base_takes_the_executor_over_with_the_base(self, fleet, placing, node, tiny_base):
        fleet.hold(asking(tiny_base, "asked3"))
        before = said(fleet, "second")
        executor = next(pid for pid in node.children("worker.executor"))
        (reported,) = fleet.hold(None, placing(SPACE, **LONG))
        fleet.until(trains(reported))
        assert executor in node.children("worker.executor")
        assert said(fleet, "third") == before
        assert fleet.lost == []

    def test_one_that_still_loads_another_base_is_killed_for_a_task(self, fleet, placing, node, tiny_base):
        fleet.until(lambda: node.children("worker.executor"))
        stopped = node.children("worker.executor")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)  # it never ends its loading
        fleet.hold(asking(tiny_base.model_copy(update={"precision": "nf4"}), "asked4"))
        fleet.until(lambda: "loading" in phases(fleet, "asked4"))
        (reported,) = fleet.hold(None, placing(SPACE, **LONG))
        fleet.until(trains(reported))
        assert "did not detach" not in node.log.read_text(), "the task did not wait for that"
        assert fleet.lost == []
        assert all(gone(pid) for pid in stopped)
