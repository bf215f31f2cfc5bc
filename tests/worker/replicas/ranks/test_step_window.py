"""How many steps all ranks take between two meetings, and which are told meanwhile. Ranks say what a test has them say."""

from types import SimpleNamespace

import pytest

from worker.replicas.ranks.step_window import StepWindow


def rank(paused: int | None, told: list, answered: int = 0) -> SimpleNamespace:
    """paused: after so many steps; None: it has answered, after so many."""
    return SimpleNamespace(
        awaited=False,
        taken=[],
        pause=lambda: told.append("pause"),
        paused_after=lambda: paused,
        answered=([None] * answered, {}, {}),
        go_on=lambda steps: told.append(steps),
    )


def untold(steps) -> None:
    raise AssertionError("nothing was taken")


def test_a_rank_whose_jobs_have_ended_ends_the_window():
    """It is seen where steps are told."""
    asked = rank(9, told := [])
    ended = rank(None, told, answered=2)
    asked.answers_within, ended.answers_within = (lambda seconds: False), (lambda seconds: True)
    window = StepWindow(20, [ended, asked], lambda: False, untold)
    assert window.steps_in_all(5, []) == 20
    window._told_at -= 2.0
    assert window.steps_in_all(6, []) == 9
    assert told == ["pause", "pause", 9]


@pytest.mark.parametrize(("slowest", "cut"), [(10, False), (7, True)])
def test_a_window_ends_where_one_replica_is_far_ahead(monkeypatch, slowest, cut):
    now, told = [100.0], []
    monkeypatch.setattr("worker.replicas.ranks.step_window.time", SimpleNamespace(monotonic=lambda: now[0]))
    slow = rank(slowest + 1, told)
    slow.answers_within, slow.taken = (lambda seconds: False), [None] * slowest
    window = StepWindow(90, [slow], lambda: False, lambda each: None)
    now[0] += 10.0
    assert window.steps_in_all(12, [None] * 11) == (12 if cut else 90)
    assert told == (["pause", 12] if cut else [])


def test_all_take_as_many_steps_as_any_has_taken():
    told, wanted = [], []
    window = StepWindow(20, [rank(7, told), rank(4, told)], lambda: bool(wanted), untold)
    assert window.steps_in_all(3, []) == 20
    wanted.append("a command")
    assert window.steps_in_all(5, []) == 7
    assert told == ["pause", "pause", 7, 7]
    assert window.steps_in_all(6, []) == 7, "it is cut once"
    assert len(told) == 4


def test_where_a_rank_is_through_all_take_all_steps():
    told = []
    window = StepWindow(20, [rank(None, told, answered=20), rank(18, told)], lambda: True, untold)
    assert window.steps_in_all(17, []) == 20
    assert told == ["pause", "pause", 20]


def test_a_rank_whose_jobs_have_ended_keeps_none_at_work():
    told = []
    window = StepWindow(20, [rank(None, told, answered=2), rank(4, told)], lambda: True, untold)
    assert window.steps_in_all(5, []) == 5
    assert told == ["pause", "pause", 5]


def test_a_window_of_one_step_is_not_cut():
    window = StepWindow(1, [rank(0, told := [])], lambda: True, untold)
    assert window.steps_in_all(0, []) == 1
    window.await_others([None])
    assert told == []


def test_the_steps_that_all_have_taken_are_told_now_and_then(monkeypatch):
    now, told = [100.0], []
    monkeypatch.setattr("worker.replicas.ranks.step_window.time", SimpleNamespace(monotonic=lambda: now[0]))
    heard = [SimpleNamespace(awaited=False, taken=[], answers_within=lambda seconds: False) for _ in range(2)]
    window = StepWindow(90, heard, lambda: False, told.append)
    own = ["a0", "a1", "a2"]
    heard[0].taken, heard[1].taken = ["b0", "b1"], ["c0", "c1", "c2"]
    assert window.steps_in_all(4, own) == 90
    assert told == [], "not yet"
    now[0] += 1.0
    window.steps_in_all(4, own)
    assert told == [[["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]]
    window.steps_in_all(5, own)
    now[0] += 1.0
    window.steps_in_all(6, [*own, "a3"])
    assert window.told == 2, "one has taken no more"
    heard[0].taken.append("b2")
    now[0] += 1.0
    window.steps_in_all(7, [*own, "a3"])
    assert told[1:] == [[["a2"], ["b2"], ["c2"]]]
    window = StepWindow(90, heard, lambda: False, told.append)
    now[0] += 1.0
    window.steps_in_all(0, None)
    assert told[2:] == [[["b0", "b1", "b2"], ["c0", "c1", "c2"]]], "rank 0 has no job"


def test_a_thread_that_waits_to_call_a_rank_cuts_the_window_short():
    one = rank(4, told := [])
    window = StepWindow(20, [one], lambda: False, untold)
    assert window.steps_in_all(3, []) == 20
    one.awaited = True
    assert window.steps_in_all(5, []) == 5
    assert told == ["pause", 5]


def test_the_last_step_of_a_window_is_never_told():
    """It is that of the meeting, whose result is its own."""
    one, told = rank(None, []), []
    one.answers_within, one.taken = (lambda seconds: False), ["b0", "b1", "b2"]
    window = StepWindow(3, [one], lambda: False, told.append)
    window._told_at -= 2.0
    window.steps_in_all(3, ["a0", "a1", "a2"])
    assert (told, window.told) == ([[["a0", "a1"], ["b0", "b1"]]], 2)


@pytest.mark.parametrize(("taken", "cut"), [([None] * 3, True), (None, False), ([None] * 20, False)])
def test_the_others_are_awaited_or_cut_short_where_rank_0_has_no_job_left(taken, cut):
    """Where its jobs have just ended they meet soon; where it had none, or has taken all steps, they take theirs."""
    one, answers = rank(7, told := []), iter([False, True])
    one.answers_within = lambda seconds: next(answers)
    window = StepWindow(20, [one], lambda: False, untold)
    window.await_others(taken)
    assert told == (["pause", 7] if cut else [])
    assert len(list(answers)) == (2 if taken and len(taken) == 20 else 1 if cut else 0)
