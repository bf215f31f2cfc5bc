"""Whose fault losses are, on values alone: nodes that lose everything fail no task, tasks that are lost everywhere end."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.fleet.node_health.node_faults import Fault, Witness, at_fault, node_rest, suspect, task_rest

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE, AFTER = BEGAN - timedelta(hours=1), BEGAN + timedelta(hours=1)


def lost(times: int) -> Fault:
    return Fault(losses=times, first_at=BEGAN)


@pytest.mark.parametrize(
    ("losses", "proved_at", "fails"),
    [(4, AFTER, False), (5, AFTER, True), (9, BEFORE, False), (10, BEFORE, True), (1000, None, False)],
    ids=["few", "it trains others", "nobody else came", "long enough", "it never trained anything"],
)
def test_on_one_node(losses, proved_at, fails) -> None:
    assert at_fault("t", {"n": lost(losses)}, {"n": Witness(("t",), proved_at)}) == fails


@pytest.mark.parametrize(
    ("one", "two", "streak", "fails"),
    [(3, 2, ("t",), True), (2, 2, ("t",), False), (4, 1, ("t",), False), (3, 2, ("t", "u"), False), (3, 2, (), True)],
    ids=["both", "too few", "once by chance", "one of them loses others too", "the other is not blamed"],
)
def test_on_two_nodes(one, two, streak, fails) -> None:
    witnesses = {"one": Witness(("t",), None), "two": Witness(streak, None)}
    assert at_fault("t", {"one": lost(one), "two": lost(two)}, witnesses) == fails


@given(st.integers(0, 500), st.integers(0, 500))
def test_nodes_that_lose_everything_fail_nobody(one, two) -> None:
    """However many there are of them."""
    witnesses = {"one": Witness(("t", "u"), AFTER), "two": Witness(("u", "t"), AFTER)}
    assert not at_fault("t", {"one": lost(one), "two": lost(two)}, witnesses)


def test_a_task_is_suspect_by_another_node_that_loses_nothing_else() -> None:
    witnesses = {"here": Witness((), None), "there": Witness(("t",), None)}
    assert suspect("t", {"there": lost(1)}, witnesses, "here")
    assert not suspect("t", {"there": lost(1)}, witnesses, "there")
    assert not suspect("t", {"there": Fault(missed=3)}, witnesses, "here")
    assert not suspect("t", {"there": lost(1)}, witnesses | {"there": Witness(("t", "u"), None)}, "here")


def test_rests_grow_and_are_bounded() -> None:
    assert [node_rest(losses, 60) for losses in range(6)] == [0, 0, 5, 60, 120, 240]
    assert node_rest(10_000, 60) == 3600
    assert [task_rest(lost(losses), 60) for losses in range(5)] == [0, 0, 5, 10, 20]
    assert task_rest(lost(10_000), 60) == 600


@pytest.mark.parametrize(
    ("devices", "fails"),
    [(((3,),), False), (((3,), (4,)), True), (((0, 1, 2, 3),), True)],
    ids=["one broken device", "two devices", "all of them"],
)
def test_what_one_device_of_several_loses_is_no_evidence(devices, fails) -> None:
    """Of a node whose other devices train."""
    fault = lost(20).model_copy(update={"devices": devices})
    assert at_fault("t", {"n": fault}, {"n": Witness(("t",), AFTER, devices=4)}) == fails
