"""What waiting tasks are notified of, and how many at once."""

from datetime import UTC, datetime, timedelta

from service.scheduler.explain.plan_news import LEAST, MOST, RATE, budget, choose
from service.tasks.plan_status import unplanned_reasons

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def said(code="waiting_for_capacity", place=1, seconds=600.0, node="n"):
    start = None if seconds is None else (NOW + timedelta(seconds=seconds)).isoformat()
    return unplanned_reasons.unplanned_reason(code, f"{place - 1} are planned before it") | {
        "place": place,
        "node": node,
        "expected_start": start,
    }


def test_a_queue_that_moves_on_is_no_news():
    before = {f"t{at}": said(place=at + 2, seconds=600 + at) for at in range(1000)}
    after = {id: said(place=at + 1, seconds=595 + at, node="m") for at, id in enumerate(before)}
    assert choose(before, after, NOW, 1000) == choose({}, {}, NOW, 0)


def test_a_first_plan_and_the_end_of_a_delay_are_never_put_off():
    moment = NOW + timedelta(hours=1)
    before = {
        "new": None,
        "joined": unplanned_reasons.not_planned(),
        "released": unplanned_reasons.not_before(moment),
        "late": said(),
    }
    after = {id: said() for id in before} | {"late": unplanned_reasons.not_before(moment)}
    found = choose(before, after, NOW, 0)
    assert (set(found.notified), found.deferred) == (set(before), ())


def test_other_reasons_come_before_other_times_and_the_rest_is_put_off():
    before = {id: said() for id in "abcd"}
    after = {"a": said(seconds=9000), "b": said(seconds=3000), "c": said("fair_share", seconds=9999), "d": said()}
    found = choose(before, after, NOW, 2)
    assert (set(found.notified), found.deferred) == ({"c", "b"}, ("a",))
    assert found.notified["c"] is after["c"]
    rest = choose(before | found.notified, after, NOW, 2)
    assert (set(rest.notified), rest.deferred) == ({"a"}, ())


def test_how_many_a_plan_may_notify_follows_the_time_since_the_last():
    assert budget(None) == MOST
    assert [budget(seconds) for seconds in (0.0, 0.1, 1.0, 10.0, 1e6)] == [LEAST, LEAST, int(RATE), int(10 * RATE), MOST]
