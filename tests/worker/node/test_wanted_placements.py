"""What a daemon makes of a desired state: of a service that knows answer sessions, and of one from before them."""

import pytest

from contract.messages.placement_messages import AnswersOnly, BaseModelRef, DesiredState, Leased
from worker.node.wanted_placements import wanted_of

BASE = BaseModelRef(name="tiny", source="/bases/tiny", revision="0" * 64)


def session(key: str, device: int) -> AnswersOnly:
    return AnswersOnly(placement_id=key, fence=1, token="t", lease_seconds=10.0, device_indexes=[device], base=BASE)


@pytest.fixture
def before() -> dict[str, tuple[Leased, float]]:
    return {"a": (session("a", 0), 5.0), "b": (session("b", 1), 6.0)}


def test_sessions_end_where_a_service_says_that_there_are_none(before) -> None:
    assert wanted_of(DesiredState(version=2, placements=[], sessions=[]), 100.0, before) == {}


def test_beside_a_service_from_before_them_sessions_go_on(before) -> None:
    assert wanted_of(DesiredState(version=2, placements=[]), 100.0, before) == before


def test_but_not_on_a_device_that_a_placement_takes(before) -> None:
    before["p"] = Leased(placement_id="p", fence=1, token="t", lease_seconds=10.0, device_indexes=[1], base=BASE), 7.0
    state = DesiredState.model_validate({"version": 2, "placements": [], "unchanged": [{"placement_id": "p"}]})
    assert wanted_of(state, 100.0, before).keys() == {"a", "p"}


def test_what_is_told_has_a_new_deadline(before) -> None:
    state = DesiredState(version=2, placements=[], sessions=[session("a", 0)])
    assert wanted_of(state, 100.0, before) == {"a": (session("a", 0), 110.0)}
