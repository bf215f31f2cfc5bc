"""An executor's pieces as OpenAI's completion objects, whole and in chunks."""

from typing import Any

from contract.messages.completion_messages import ChoicePiece, CompletionPiece, TokenProbability
from service.openai.completions.completion_objects import Choice, CompletionAnswer


def answer(chat: bool, logprobs: bool = True, choices: int = 1) -> CompletionAnswer:
    return CompletionAnswer("cmpl_7", "small", 1, "fp_a", chat, [Choice() for _ in range(choices)], logprobs)


def piece(*choices: ChoicePiece) -> CompletionPiece:
    return CompletionPiece(request_id="cmpl_7", number=1, choices=list(choices), prompt_tokens=5, completion_tokens=2)


def token(text: str) -> TokenProbability:
    return TokenProbability(token=text, logprob=-0.5, top=[(text, -0.5)])


def streamed(made: CompletionAnswer, *pieces: CompletionPiece) -> list[dict[str, Any]]:
    """The choices of all chunks."""
    said = [*made.first_chunks()]
    for one in pieces:
        said += made.chunks(one)
        made.take(one)
    return [choice for chunk in said for choice in chunk["choices"]]


def test_a_streams_text_offsets_go_on_over_the_tokens_of_the_pieces_before() -> None:
    """Those of what a stop sequence cut off the text, too."""
    made = answer(chat=False)
    first, second = ChoicePiece(index=0, text="a", logprobs=[token("ab"), token("c")]), ChoicePiece(index=0, text="d")
    last = ChoicePiece(index=0, text="e", logprobs=[token("e")], finish_reason="stop")
    said = streamed(made, piece(first), piece(second), piece(last))
    assert [choice["logprobs"]["text_offset"] for choice in said] == [[0, 2], [], [3]]
    assert made.whole()["choices"][0]["logprobs"]["text_offset"] == [0, 2, 3]
    assert [choice["text"] for choice in said] == ["a", "d", "e"]


def test_logprobs_of_a_token_that_adds_no_text_are_in_a_chunk() -> None:
    """Its characters may come with the next token."""
    part = "\ufffd"
    said = streamed(answer(chat=True), piece(ChoicePiece(index=0, logprobs=[token(part)])), piece(ChoicePiece(index=0)))
    (_, told) = said
    (written,) = told["logprobs"]["content"]
    assert (told["delta"], written["token"], written["bytes"]) == ({"content": ""}, part, None)
    assert written["top_logprobs"] == [{"token": part, "logprob": -0.5, "bytes": None}]


def test_logprobs_that_were_not_asked_for_are_not_written() -> None:
    more = ChoicePiece(index=0, text="a", logprobs=[token("a")])
    for chat in (True, False):
        made = answer(chat, logprobs=False)
        assert [choice["logprobs"] for choice in streamed(made, piece(more))] == [None] * (2 if chat else 1)
        assert made.whole()["choices"][0]["logprobs"] is None


def test_a_choice_that_has_finished_stays_so() -> None:
    made = answer(chat=True, choices=2)
    made.take(piece(ChoicePiece(index=0, text="a", finish_reason="length")))
    made.take(piece(ChoicePiece(index=0), ChoicePiece(index=1, text="b", finish_reason="stop")))
    assert [choice["finish_reason"] for choice in made.whole()["choices"]] == ["length", "stop"]


def test_a_stream_of_texts_begins_with_its_first_text() -> None:
    (said,) = streamed(answer(chat=False), piece(ChoicePiece(index=0, text="a")))
    assert said == {"index": 0, "text": "a", "logprobs": said["logprobs"], "finish_reason": None}
