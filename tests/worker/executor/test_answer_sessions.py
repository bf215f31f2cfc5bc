"""A base that an executor holds to be asked alone: what it keeps from one session to the next."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from contract.messages.placement_messages import AnswersOnly, BaseModelRef
from tests.worker.executor.completion_work import CALM, SPACE, chat, over
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from worker.adapters.arena_adapters import ArenaAdapters
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor import attached_placements
from worker.executor.training_loop import Executor
from worker.model import arena as arenas
from worker.pipe_messages import Attach, Detach, ExecutorProgress, PlacementEnded, Serve, Stop

pytestmark = pytest.mark.usefixtures("measured_once")


@contextmanager
def executing(fleet: Fleet, folder: Any) -> Iterator[tuple[Executor, list[PlacementEnded]]]:
    """An executor that runs in a thread, and what it says has ended."""
    ended: list[PlacementEnded] = []

    def tell(news: ExecutorProgress | PlacementEnded) -> None:
        with fleet.lock:
            if isinstance(news, PlacementEnded):
                ended.append(news)
            fleet.lock.notify_all()

    with PlacementLink(fleet.url) as link:
        executor = Executor(Inside(fleet, folder).settings, link, tell)
        thread = threading.Thread(target=executor.run)
        thread.start()
        try:
            yield executor, ended
        finally:
            executor.handle_command(Stop(seconds=0))
            thread.join()


def hold(fleet: Fleet, executor: Executor, base: BaseModelRef, key: str) -> None:
    lease = {"placement_id": key, "fence": 1, "token": f"token-{key}", "lease_seconds": 900.0}
    session = AnswersOnly(**lease, device_indexes=[0], base=base)
    fleet.hold(session)
    executor.handle_command(Serve(placement=session, deadline=boot_now() + session.lease_seconds))


def ask(fleet: Fleet, id: str, **more: Any) -> str:
    with fleet.lock:
        fleet.asked.append(chat(id, **more))
    fleet.until(lambda: id in fleet.pieces and over(fleet, id))
    assert fleet.pieces[id][-1].failed is None
    return "".join(choice.text for piece in fleet.pieces[id] for choice in piece.choices)


def test_isolation_no_adapter_stays_on_an_executor_for_the_next_session(fleet, trained, tiny_base, tmp_path) -> None:
    files = trained(SPACE)
    with executing(fleet, tmp_path / "asked") as (executor, ended):
        hold(fleet, executor, tiny_base, "own")
        said = ask(fleet, "tuned", adapter=files)
        assert ask(fleet, "again", adapter=files) == said
        assert len(executor._completions._adapters) == 1, "kept for the next request of the same session"
        loaded = executor._attached._base.loaded
        executor.handle_command(Detach(placement_id="own"))
        fleet.until(lambda: ended)
        hold(fleet, executor, tiny_base, "shared")
        assert ask(fleet, "base") != said
        assert len(executor._completions._adapters) == 0
        assert executor._attached._base.loaded is loaded, "the base is not loaded twice"
        assert ask(fleet, "anew", adapter=files) == said


def test_isolation_an_adapter_that_is_asked_when_the_session_changes_goes_with_its_request(
    fleet, trained, tiny_base, tmp_path, monkeypatch
) -> None:
    files = trained(SPACE)
    with executing(fleet, tmp_path / "asked") as (executor, _):
        hold(fleet, executor, tiny_base, "own")
        assert ask(fleet, "first", adapter=files)
        completions, begun = executor._completions, threading.Event()
        run_pass = completions.advance

        def held_back(replicas, room) -> None:
            """No pass before the next session has come."""
            if completions._placement_id == "own":
                completions._begin_waiting(replicas, room)
                begun.set()
            else:
                run_pass(replicas, room)

        monkeypatch.setattr(completions, "advance", held_back)
        with fleet.lock:
            fleet.asked.append(chat("tuned", adapter=files))
        assert begun.wait(120)
        with fleet.lock:
            own = list(fleet.sessions)
            hold(fleet, executor, tiny_base, "shared")
            fleet.sessions += own  # which still takes what its requests send
        executor.handle_command(Detach(placement_id="own"))
        fleet.until(lambda: over(fleet, "tuned"))
        assert ask(fleet, "base")
        assert len(completions._adapters) == 0
        assert completions._preparation._read is None


def test_answers_without_a_gap_are_progress(fleet, tiny_base, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(attached_placements, "_REPORT_SECONDS", 0.0)
    with executing(fleet, tmp_path) as (executor, _):
        hold(fleet, executor, tiny_base, "asked")
        assert ask(fleet, "first")
        send, busy = executor._attached._send, list[bool]()

        def tell(news: ExecutorProgress | PlacementEnded) -> None:
            busy.append(bool(executor._completions))
            send(news)

        monkeypatch.setattr(executor._attached, "_send", tell)
        assert ask(fleet, "second")
        assert any(busy), "the service hears of it while the answer is made"


def test_a_session_whose_lease_ends_is_let_go_and_told(fleet, tiny_base, tmp_path) -> None:
    with executing(fleet, tmp_path) as (executor, ended):
        hold(fleet, executor, tiny_base, "asked")
        assert ask(fleet, "first")
        executor._attached._leases["asked"]._deadline = boot_now()
        fleet.until(lambda: ended)
        assert [(one.placement_id, one.lost, one.detail) for one in ended] == [("asked", True, "its lease ended")]
        assert executor._attached.serving_lease is None


def test_a_base_that_cannot_be_loaded_is_told(fleet, tiny_base, tmp_path) -> None:
    with executing(fleet, tmp_path) as (executor, ended):
        hold(fleet, executor, tiny_base.model_copy(update={"revision": "0" * 64}), "asked")
        fleet.until(lambda: ended)
        assert ended[0].lost
        assert "base model tiny" in ended[0].detail
        assert executor._attached.empty


def test_a_job_that_a_request_left_no_rows_gets_them_once_it_is_answered(
    fleet, placing, trained, tiny_base, tmp_path, monkeypatch
) -> None:
    files, enlarged, allocate = trained(SPACE), arenas._enlarged, ArenaAdapters.allocate
    refused = threading.Event()

    def grown(buffer: torch.Tensor, count: int) -> torch.Tensor:
        if count > 16:
            torch.empty(1 << 60, dtype=torch.uint8)  # fails as an allocation fails
        return enlarged(buffer, count)

    def watched(self: ArenaAdapters, *parts: Any) -> Any:
        found = allocate(self, *parts)
        if found.lacking is not None:
            refused.set()
        return found

    monkeypatch.setattr(arenas, "_enlarged", grown)
    monkeypatch.setattr(ArenaAdapters, "allocate", watched)
    with executing(fleet, tmp_path / "asked") as (executor, ended):
        hold(fleet, executor, tiny_base, "session")
        completions, begun = executor._completions, threading.Event()
        run_pass = completions.advance

        def held_back(replicas: Any, room: Any) -> None:
            """No pass before the job has found no rows."""
            if refused.is_set():
                run_pass(replicas, room)
            else:
                completions._begin_waiting(replicas, room)
                begun.set()

        monkeypatch.setattr(completions, "advance", held_back)
        with fleet.lock:
            fleet.asked.append(chat("tuned", adapter=files))
        assert begun.wait(60)
        placement = placing({**SPACE, "rank": [16]}, early_exit=CALM, training={"max_steps": 4})
        reported = fleet.place(placement)
        executor.handle_command(Attach(placement=placement, deadline=boot_now() + placement.lease_seconds))
        assert refused.wait(60)
        fleet.until(lambda: over(fleet, "tuned") and ended)
        assert {job: event.kind for job, event in reported.ended.items()} == {0: "job_completed"}
