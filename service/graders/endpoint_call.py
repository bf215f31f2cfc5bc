"""One text sent to a grader's endpoint, and what its answer means. Knows no tables.

Request and answer are those of OpenAI's endpoint graders. A redirect is not followed: a text and the headers go to
the URL that the tenant named.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from service.http.outbound import Failed, Outbound, Refused

MOST_ANSWER = 64 * 1024  # bytes
_SHOWN = 200  # characters of a reason
_AGAIN = (408, 425, 429)  # besides 5xx
_TRACES = uuid.UUID("7a2c1f50-6b0e-5a4d-9a35-5d1d2a6f0c11")
_OWN = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "motet-graders/1"}


@dataclass(frozen=True)
class TextToGrade:
    """trace_id: the same at every try."""

    prompt: str
    reference: str
    text: str
    finish_reason: str
    trace_id: str


@dataclass(frozen=True)
class Graded:
    """score: from 0 to 1; None: `error` says why there is none, and `again` whether another try may have one."""

    score: float | None
    error: str | None = None
    again: bool = False


def trace_id(grading_id: str, place: int) -> str:
    """A UUID of the text, by which an endpoint knows one that is sent again."""
    return f"trace_{uuid.uuid5(_TRACES, f'{grading_id}/{place}')}"


def request_body(text: TextToGrade) -> bytes:
    """The item has the row's prompt and answer as text, whatever the format of rows."""
    answer = {"role": "assistant", "content": text.text}
    sample = {
        "output_text": text.text,
        "choices": [{"index": 0, "message": answer, "finish_reason": text.finish_reason}],
    }
    item = {"prompt": text.prompt, "completion": text.reference}
    return json.dumps({"sample": sample, "item": item, "trace_id": text.trace_id}).encode()


def grade(outbound: Outbound, url: str, headers: Mapping[str, str], text: TextToGrade) -> Graded:
    own = {name: value for name, value in _OWN.items() if name.lower() not in {given.lower() for given in headers}}
    try:
        answer = outbound.post(url, request_body(text), {**own, **headers}, MOST_ANSWER + 1)
    except Refused as refused:
        return Graded(None, f"its URL {refused}"[:_SHOWN])
    except Failed as failed:
        return Graded(None, str(failed)[:_SHOWN], again=True)
    if 200 <= answer.status < 300:
        return _read(answer.body)
    moved = ", and redirects are not followed" if 300 <= answer.status < 400 else ""
    return Graded(None, f"answered {answer.status}{moved}", again=answer.status >= 500 or answer.status in _AGAIN)


def _read(body: bytes) -> Graded:
    if len(body) > MOST_ANSWER:
        return Graded(None, f"answered more than {MOST_ANSWER} bytes")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    score = said.get("score") if isinstance(said, dict) else None
    if isinstance(score, bool) or not isinstance(score, int | float):
        return Graded(None, 'answered no JSON object with a number "score"')
    if not 0 <= score <= 1:  # false of NaN; an integer of any size is compared as it is
        return Graded(None, "answered a score that is not from 0 to 1")
    return Graded(float(score))
