"""Completions beside training: what they hold, and what they give back."""

from typing import Any

import pytest

from contract.messages.report_messages import Attached
from tests.worker.executor.completion_work import CALM, LONG, SPACE, answers, chat, over
from tests.worker.executor.text_evaluations import passes_take
from tests.worker.inside import Inside
from worker.adapters.arena_growth import NoRows
from worker.executor.completions import completion_batch
from worker.executor.completions.completion_batch import Completions
from worker.generate.paged_cache import PagedCache
from worker.pipe_messages import Detach
from worker.replicas.replica_set import Replicas


def test_a_request_that_nobody_waits_for_is_billed_and_frees_what_it_held(fleet, placing, tmp_path) -> None:
    seen: list[str] = []

    def leave() -> None:
        if fleet.pieces.get("slow") and not seen:
            seen.append("slow")
            fleet.gone.add("slow")

    fleet.asked += [chat("slow", max_tokens=200, temperature=1.5)]
    executors: list[Any] = []

    def look() -> None:
        leave()
        if over(fleet, "slow"):
            fleet.end(placement.placement_id)
            executors[0].handle_command(Detach(placement_id=placement.placement_id))

    fleet.on_pieces = look
    placement = placing(SPACE, early_exit=CALM, training=LONG)
    Inside(fleet, tmp_path, worker_completion_share=0.2).run(placement, prepare=executors.append)
    last = fleet.pieces["slow"][-1]
    assert last.over
    assert 0 < last.completion_tokens < 200
    assert not executors[0]._completions.at_hand
    generator = executors[0]._completions._generator
    assert generator is None or not generator.busy


@pytest.mark.parametrize("lacking", ["cache", "rows"])
def test_without_memory_a_request_fails_and_training_goes_on(fleet, placing, trained, tmp_path, monkeypatch, lacking) -> None:
    files = trained(SPACE)

    def none(*_: object) -> None:
        if lacking == "cache":
            raise MemoryError("out of memory")
        raise NoRows("the device had no memory for the rows")

    monkeypatch.setattr(*((PagedCache, "__init__") if lacking == "cache" else (Replicas, "hold")), none)
    said = answers(fleet, tmp_path, placing(SPACE, early_exit=CALM, training=LONG), [chat("q", adapter=files)])
    assert said["q"].last.failed.code == "no_memory"
    assert said["q"].last.failed.param is None


def test_a_pass_without_memory_lets_requests_begin_anew_by_fewer_at_once(fleet, placing, tmp_path, monkeypatch) -> None:
    plenty = answers(
        fleet, tmp_path / "a", placing(SPACE, early_exit=CALM, training=LONG), [chat(f"p{at}", str(at)) for at in range(4)]
    )
    failures: list[int] = []
    real = completion_batch.Generator.step

    def scarce(self: Any) -> Any:
        running = len(self._scheduler.running) + self._scheduler.waiting
        if running > 2:
            failures.append(running)
            raise MemoryError("out of memory")
        return real(self)

    monkeypatch.setattr(completion_batch.Generator, "step", scarce)
    said = answers(
        fleet, tmp_path / "b", placing(SPACE, early_exit=CALM, training=LONG), [chat(f"s{at}", str(at)) for at in range(4)]
    )
    assert failures
    assert [said[f"s{at}"].text for at in range(4)] == [plenty[f"p{at}"].text for at in range(4)]


def test_after_a_pause_as_many_requests_as_ever_run_at_once(fleet, placing, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(completion_batch, "IDLE_SECONDS", 0.0)
    real_step, real_serve = completion_batch.Generator.step, Completions.serve
    failures, grew, executors = list[int](), list[tuple[int, int]](), list[Any]()

    def scarce(self: Any) -> Any:
        if not failures:
            failures.append(1)
            raise MemoryError("out of memory")
        return real_step(self)

    def watched(self: Any, replicas: Any, lease: Any) -> None:
        before, same = self._most, replicas is self._replicas
        real_serve(self, replicas, lease)
        if same and self._most > before:
            grew.append((before, self._most))
            look()

    def look() -> None:
        if grew and fleet.pieces.get("alone"):
            fleet.end(placement.placement_id)
            executors[0].handle_command(Detach(placement_id=placement.placement_id))

    fleet.on_pieces = look
    monkeypatch.setattr(completion_batch.Generator, "step", scarce)
    monkeypatch.setattr(Completions, "serve", watched)
    fleet.asked += [chat("alone")]
    placement = placing(SPACE, early_exit=CALM, training=LONG)
    Inside(fleet, tmp_path, worker_completion_share=0.5).run(placement, prepare=executors.append)
    assert fleet.pieces["alone"][-1].failed.code == "no_memory"
    assert grew == [(1, completion_batch.MOST_REQUESTS)]


def test_jobs_get_the_rows_that_idle_adapters_held(fleet, placing, trained, tmp_path, monkeypatch) -> None:
    """A task that joins while an asked adapter lies idle in the arena finds it gone."""
    files, dropped = trained(SPACE), []
    real = Completions.make_room

    def watched(self: Any, jobs_wait: bool) -> None:
        before = len(self._adapters)
        real(self, jobs_wait)
        dropped.append(before - len(self._adapters))

    monkeypatch.setattr(Completions, "make_room", watched)
    first, second = (placing(SPACE, early_exit=CALM, training={"epochs": 100, "max_steps": steps}) for steps in (300, 20))
    fleet.asked += [chat("q", adapter=files)]
    inside = Inside(fleet, tmp_path, worker_completion_share=0.5)
    inside.between_steps = lambda: fleet.until(lambda: not fleet.asked)  # it is asked as training begins

    def answered() -> bool:
        return "q" in fleet.pieces and over(fleet, "q")

    reported = inside.run(first, joining=[second], after=answered, prepare=passes_take(0.0), paced=True)
    assert answered()
    assert sum(dropped) == 1
    assert all(one.of(Attached) and one.ended for one in reported)
