"""When a state is told, on a clock of the test's own."""

from service.autoscaling.announcement_pace import REPEAT_SECONDS, RETRIES, AnnouncementPace


def test_the_first_state_is_told_at_once_and_a_change_once_it_has_lasted():
    pace = AnnouncementPace(30)
    assert pace.due("a", 0)
    pace.told("a", 1)
    assert not pace.due("b", 10)
    assert not pace.due("c", 39)  # whatever it is by then: the latest wins
    assert pace.due("d", 40)
    pace.told("d", 41)
    assert not pace.due("d", 100)


def test_a_change_that_goes_away_is_never_told():
    pace = AnnouncementPace(30)
    pace.told("a", 0)
    assert [pace.due(state, at) for at, state in ((10, "b"), (20, "a"), (39, "b"), (68, "b"))] == [False] * 4
    assert pace.due("b", 69)


def test_an_unchanged_state_is_told_again_at_intervals():
    pace = AnnouncementPace(30)
    pace.told("a", 0)
    assert not pace.due("a", REPEAT_SECONDS - 1)
    assert pace.due("a", REPEAT_SECONDS)


def test_after_a_failure_the_latest_state_is_tried_with_growing_pauses():
    pace, now = AnnouncementPace(30), 0.0
    pace.told("a", now)
    for pause in (*RETRIES, RETRIES[-1]):
        assert pace.failed(now) is (now == 0)
        assert pace.resting(now + pause - 1)
        assert not pace.due("b", now + pause - 1)
        now += pause
        assert not pace.resting(now)
        assert pace.due("a", now), "the receiver may not have it"
    assert pace.told("a", now), "that ends the failures"
    assert not pace.told("a", now)
