"""Completions that are given to an executor again, since the one that had them was lost before any of the answer was read."""

from datetime import timedelta

import openai
from sqlalchemy import func, update

from service.completions.models import CompletionRequest
from tests.service.live_server import until
from tests.service.openai.completions.completion_executor import USER, Executor, piece, refused, text


def test_an_executor_that_ends_before_it_sent_anything_has_another_answer(ask, executor, monkeypatch, database) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))  # not streamed: nothing has left yet
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(claimed_until=func.now())
        )
    other = Executor(executor.placement, "executor-2")
    again = other.next()
    assert again == work | {"attempt": 2}
    assert executor.sends(piece(work, 2, text("st", finish_reason="stop"), over=True)) == [work["request_id"]]
    assert executor.wants(held=(work["request_id"],))["gone"] == [work["request_id"]]
    other.sends(piece(again, 1, text("whole", finish_reason="stop"), over=True))
    said = answer.result()
    assert said.choices[0].message.content == "whole"


def test_an_executor_that_was_away_and_answers_anew_sends_nothing_of_its_first_attempt(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    with database.begin() as session:
        own = CompletionRequest.id == work["request_id"]
        session.execute(update(CompletionRequest).where(own).values(claimed_until=func.now()))
    again = executor.next()
    assert again["request_id"] == work["request_id"]
    # what its first attempt still had to send
    late = piece(work, 2, text("st"), attempt=work["attempt"]), piece(work, 3, over=True, attempt=work["attempt"])
    assert [executor.sends(one) for one in late] == [[], []]
    executor.sends(piece(again, 1, text("who"), attempt=again["attempt"]))
    executor.sends(piece(again, 2, text("le", finish_reason="stop"), over=True, attempt=again["attempt"]))
    said = answer.result().choices[0]
    assert (said.message.content, said.finish_reason) == ("whole", "stop")


def test_a_long_answer_whose_executor_ends_is_offered_as_long_as_a_new_one(ask, executor, server, database) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    asked_at = func.now() - timedelta(seconds=2 * server.state.settings.completion_wait_seconds)
    with database.begin() as session:
        own = CompletionRequest.id == work["request_id"]
        session.execute(update(CompletionRequest).where(own).values(created_at=asked_at, claimed_until=func.now()))
    other, given = Executor(executor.placement, "executor-2"), []
    until(lambda: given.extend(other.wants(room=1)["requests"]) or given or answer.done())
    for again in given:
        other.sends(piece(again, 1, text("whole", finish_reason="stop"), over=True, attempt=again["attempt"]))
    assert answer.result().choices[0].message.content == "whole"


def test_a_request_that_ends_two_executors_is_not_given_to_a_third(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    for _ in range(2):
        work = executor.next()
        with database.begin() as session:
            own = CompletionRequest.id == work["request_id"]
            session.execute(update(CompletionRequest).where(own).values(claimed_until=func.now()))
    refused(answer, openai.InternalServerError, "completion_lost")
