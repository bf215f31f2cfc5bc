"""Why a task waits: the code, a sentence with the numbers, its place, and when it is told anew."""

from datetime import UTC, datetime, timedelta

import pytest

from service.scheduler.problem import Node, Problem, Queued, Running
from service.scheduler.solve import solve
from service.scheduler.waiting import Offer, differs, explain

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30


def reasons(problem, offers=None, needs=None):
    offers = offers if offers is not None else {node.id: Offer(f"name-{node.id}", node.gpus, 8 * GIB) for node in problem.nodes}
    needs = needs or dict.fromkeys((task.id for task in problem.queued), GIB)
    return explain(problem, solve(problem).starts, offers, needs, NOW)


def test_capacity_says_how_many_and_when():
    problem = Problem((Node("n", 2),), (Running("r", "n", 2, 100),), (Queued("a", 1, 100, (50,)), Queued("b", 2, 100, (60,))))
    found = reasons(problem)
    assert [(found[task]["code"], found[task]["place"]) for task in "ab"] == [("capacity", 1), ("capacity", 2)]
    assert found["a"]["sentence"].startswith("The task needs 1 GPU of one node, and none of the 2 GPUs")
    assert found["a"]["expected_start"] == "2026-01-01T00:01:40+00:00"
    assert found["a"]["expected_end"] == "2026-01-01T00:02:30+00:00"


def test_a_hole_kept_for_a_heavier_task_is_named():
    wide, narrow = Queued("wide", 2, 10_000, (100,)), Queued("narrow", 1, 10, (80,))
    problem = Problem((Node("n", 2),), (Running("r", "n", 1, 50),), (wide, narrow))
    found = reasons(problem)
    assert (found["wide"]["code"], found["narrow"]["code"]) == ("capacity", "reserved")
    assert "1 GPU" in found["narrow"]["sentence"]


def test_what_fits_no_node_says_the_numbers_and_has_no_start():
    problem = Problem(
        (Node("n", 2),), (), (Queued("wide", 4, 100, (None,)), Queued("deep", 1, 100, (None,)), Queued("ok", 1, 100, (5,)))
    )
    found = reasons(problem, needs={"wide": GIB, "deep": 40 * GIB, "ok": GIB})
    assert set(found) == {"wide", "deep"}
    assert found["wide"]["code"] == found["deep"]["code"] == "no_node_fits"
    assert "4 GPUs" in found["wide"]["sentence"]
    assert "name-n, has 2" in found["wide"]["sentence"]
    assert "40.00 GiB" in found["deep"]["sentence"]
    assert "8.00 GiB" in found["deep"]["sentence"]
    assert found["wide"]["expected_start"] is None
    assert {found["wide"]["place"], found["deep"]["place"]} == {1, 2}


def test_an_empty_fleet_is_said_so():
    problem = Problem((), (), (Queued("a", 1, 100, ()),))
    assert reasons(problem)["a"]["code"] == "no_node"


@pytest.mark.parametrize(
    ("moved", "told"),
    [(0, False), (10, False), (20, True), (-20, True)],
)
def test_a_start_that_moves_a_little_is_not_told_anew(moved, told):
    def at(seconds):
        return (NOW + timedelta(seconds=seconds)).isoformat()

    before = {"code": "capacity", "place": 1, "sentence": "", "expected_start": at(60), "expected_end": at(90)}
    assert differs(before, before | {"expected_start": at(60 + moved)}, NOW) == told


def test_another_place_or_code_is_told():
    before = {"code": "capacity", "place": 2, "sentence": "", "expected_start": None, "expected_end": None}
    assert differs(None, before, NOW)
    assert not differs(before, dict(before), NOW)
    assert differs(before, before | {"place": 1}, NOW)
    assert differs(before, before | {"code": "no_node_fits"}, NOW)
    assert differs(before, before | {"sentence": "another size"}, NOW)
