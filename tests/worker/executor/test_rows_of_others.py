"""What is no job finds no arena rows beside those of others: the adapter that a dpo task starts from, those of evaluations."""

import pytest
import torch

from contract.messages.placement_messages import WarmStartRef
from contract.messages.report_messages import BaseEvaluated, Detached
from contract.states import JobStatus
from tests.worker.corpus import PAIRS
from tests.worker.executor.completion_work import LONG, answers, over, work
from tests.worker.executor.text_evaluations import ASKED, evaluated
from tests.worker.inside import Inside
from worker.executor.step_scheduler import StepScheduler
from worker.model import arena as arenas
from worker.pipe_messages import Detach

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4]}


@pytest.fixture
def arena_of(monkeypatch):
    """Sets how many rows the device has memory for; beyond them an allocation fails as it does there."""

    def limit(rows: int) -> None:
        real = arenas._enlarged

        def grown(buffer, count):
            if count > rows:
                torch.empty(1 << 60, dtype=torch.uint8)
            return real(buffer, count)

        monkeypatch.setattr(arenas, "_enlarged", grown)

    return limit


@pytest.fixture
def preferring(placing, trained):
    """A dpo task that starts from an adapter."""
    placement = placing(SPACE, PAIRS, objective={"type": "dpo"}, early_exit=CALM, training={"max_steps": 6})
    return placement.model_copy(update={"warm_start": WarmStartRef(adapter_id="adapter_x", files=trained(SPACE))})


def again(placement, key):
    return placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})


def left(reported):
    return dict(reported.curves), {job: event.kind for job, event in reported.ended.items()}


def test_it_waits_for_rows_that_a_neighbour_trains_in(fleet, placing, tmp_path, preferring, arena_of, monkeypatch):
    """And keeps the neighbour's steps from nothing meanwhile: a device may be given several at a time."""
    (alone,) = Inside(fleet, tmp_path / "alone").run(again(preferring, "alone"))
    neighbour = placing(SPACE | {"rank": [32]}, early_exit=CALM, training=LONG)
    arena_of(32)
    executors, turns = [], []
    choose = StepScheduler.choose

    def seen(self, replicas, placements, runs, others):
        turns.append((len(placements), others))
        if turns.count((2, False)) == 1 and turns[-1] == (2, False):  # it waits, and may have the rows now
            fleet.end(neighbour.placement_id)
            executors[0].handle_command(Detach(placement_id=neighbour.placement_id))
        return choose(self, replicas, placements, runs, others)

    monkeypatch.setattr(StepScheduler, "choose", seen)
    inside = Inside(fleet, tmp_path / "both")
    beside, reported = inside.run(neighbour, prepare=executors.append, joining=[preferring])
    assert (2, False) in turns
    assert not beside.ended
    assert left(reported) == left(alone)
    assert left(alone)[1] == {0: "job_completed"}


def test_no_job_of_a_search_takes_the_rows_that_it_waits_for(fleet, placing, tmp_path, trained, arena_of):
    """Its adapter takes two jobs' rows. Jobs that end one by one made room for the next of theirs alone."""
    wide = {"rank": [16]}
    prefers = placing(SPACE | wide, PAIRS, objective={"type": "dpo"}, early_exit=CALM, training={"max_steps": 6})
    prefers = prefers.model_copy(update={"warm_start": WarmStartRef(adapter_id="adapter_x", files=trained(SPACE | wide))})
    search = placing(SPACE | {"batch_size": [1, 2, 3, 4, 5, 6, 7, 8]}, early_exit=CALM, training={"epochs": 2})
    arena_of(16)
    inside, executors = Inside(fleet, tmp_path), []
    before: list[set[int]] = []  # jobs of the search that had begun, after each step that left the base unknown

    def await_joining() -> None:
        """Before a job of the search ends."""
        (running,) = executors
        if fleet.reported[search.placement_id].step[0] >= 2:
            while len(running._attached.open) < 2:
                running._inbox.get(timeout=120)()
            running.between_steps = look

    def look() -> None:
        """All that the step brought about has been reported."""
        if not fleet.reported[prefers.placement_id].of(BaseEvaluated):
            status = fleet.reported[search.placement_id].status
            before.append({job for job in status if status[job] != JobStatus.PENDING})

    inside.between_steps = await_joining
    searched, preferred = inside.run(search, prepare=executors.append, joining=[prefers], paced=True)
    assert before[-1] == {0, 1}, "those that had the rows"
    assert {kind for one in (searched, preferred) for kind in left(one)[1].values()} == {"job_completed"}
    assert len(searched.ended) == 8


def test_adapters_that_completions_hold_give_way_to_it(fleet, placing, tmp_path, preferring, trained, arena_of):
    """It begins beside the neighbour, which is ended once it is done."""
    neighbour, asked = placing(SPACE, early_exit=CALM, training=LONG), trained(SPACE | {"rank": [16]})
    executors = []

    def cancel_neighbour(reported, report):
        if reported.placement is preferring and reported.ended:
            fleet.end(neighbour.placement_id)
            executors[0].handle_command(Detach(placement_id=neighbour.placement_id))

    arena_of(24)
    fleet.asked.append(work("one", adapter=asked))
    fleet.on_report = cancel_neighbour
    joins = {"joining": [preferring], "after": lambda: "one" in fleet.pieces and over(fleet, "one")}
    inside = Inside(fleet, tmp_path / "both", worker_completion_share=0.5)
    beside, reported = inside.run(neighbour, prepare=executors.append, **joins)
    assert left(reported)[1] == {0: "job_completed"}
    assert not beside.ended


def test_who_asks_an_adapter_is_told_to_try_again_where_others_have_the_rows(fleet, placing, tmp_path, trained, arena_of):
    """The words for an adapter that is too large for the device say what its operator may change."""
    asked, neighbour = trained(SPACE), placing(SPACE, early_exit=CALM, training=LONG)
    arena_of(8)
    said = answers(fleet, tmp_path, neighbour, [work("one", adapter=asked)])
    failed = said["one"].last.failed
    assert (failed.code, failed.message) == ("no_memory", "the executor has no memory for it now; try again shortly")


def test_an_evaluation_waits_for_rows_that_others_train_in(fleet, placing, tmp_path, arena_of):
    """Once its first job has ended, the second one has its rows."""
    space = SPACE | {"learning_rate": [3e-3, 1e-3]}
    asks = placing(space, early_exit=CALM, evaluation=ASKED, training={"max_steps": 6})
    (alone,) = Inside(fleet, tmp_path / "alone").run(again(asks, "alone"))
    neighbour = placing(SPACE, early_exit=CALM, training={"max_steps": 60, "epochs": 20})
    arena_of(16)
    _, reported = Inside(fleet, tmp_path / "both").run(neighbour, asks, together=True)
    assert left(reported) == left(alone)
    for job in (None, 0, 1):
        assert (evaluated(reported)[job].error, evaluated(reported)[job].scores) == (None, evaluated(alone)[job].scores)
        assert evaluated(reported)[job].samples == evaluated(alone)[job].samples


def test_the_evaluation_of_a_task_that_leaves_does_not_wait_for_them(fleet, placing, tmp_path, arena_of):
    """Its own second job has the rows, and gives none back before it has left."""
    space = SPACE | {"rank": [8, 16]}
    asks = placing(space, early_exit=CALM, evaluation=ASKED, training={"max_steps": 6, "epochs": 10})
    executors = []

    def ask_to_leave(reported, report):
        if reported.step[1]:
            executors[0].handle_command(Detach(placement_id=asks.placement_id, keep=True))

    arena_of(16)
    fleet.on_report = ask_to_leave
    (reported,) = Inside(fleet, tmp_path).run(asks, prepare=executors.append, paced=True)
    assert reported.of(Detached)
    assert list(reported.ended) == [0]
    assert "arena rows" in evaluated(reported)[0].error
