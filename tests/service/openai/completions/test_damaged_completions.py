"""A damaged row of one request, or of a piece of its answer, ends that request with words, and nobody else's."""

import openai
import pytest
from sqlalchemy import insert, select

from service.completions.models import CompletionPieces, CompletionRequest
from tests.service.openai.completions.answerer import waiting
from tests.service.openai.completions.completion_executor import USER, piece, refused, text


@pytest.mark.usefixtures("nobody_asks")
@pytest.mark.parametrize("value", [3, ["x"], {}, {"detail": 3, "retry_after": 2}, {"detail": "x", "retry_after": "soon"}])
def test_why_no_executor_is_started(ask, damage, database, value):
    damaged = ask("chat", messages=USER)
    waiting(database)
    damage(CompletionRequest, "refusal", value, CompletionRequest.state == "waiting")
    told = refused(damaged, openai.InternalServerError, "no_executor")
    assert "(completion_requests.refusal) cannot be read" in told.message
    assert told.response.headers["retry-after"] == "30"


@pytest.mark.usefixtures("nobody_asks")
@pytest.mark.parametrize("value", [3, ["x"], {"number": 2}, "x"])
def test_a_piece_of_an_answer(ask, executor, database, value):
    damaged = ask("chat", messages=USER)
    work = executor.next()
    sound = ask("chat", messages=USER)
    other = executor.next()
    with database.begin() as session:
        session.execute(insert(CompletionPieces.__table__).values(request_id=work["request_id"], number=1, content=value))
    told = refused(damaged, openai.InternalServerError, "completion_lost")
    assert "(completion_pieces.content) cannot be read" in told.message
    executor.sends(piece(other, 1, text("yes", finish_reason="stop"), over=True))
    assert sound.result().choices[0].message.content == "yes"
    assert executor.wants(room=0, held=(work["request_id"],))["gone"] == [work["request_id"]]
    with database.begin() as session:
        assert session.scalar(select(CompletionRequest.state).where(CompletionRequest.id == work["request_id"])) == "ended"


@pytest.mark.usefixtures("nobody_asks")
def test_what_came_before_a_damaged_piece_is_handed_on(ask, executor, database):
    answer = ask("chat", messages=USER, stream=True)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    stream = iter(answer.result())
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "lo"]
    with database.begin() as session:
        session.execute(insert(CompletionPieces.__table__).values(request_id=work["request_id"], number=2, content=3))
    with pytest.raises(openai.APIError, match=r"\(completion_pieces.content\) cannot be read"):
        next(stream)
