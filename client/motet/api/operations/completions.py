"""Calls that ask a base or an adapter, by OpenAI's routes: one prompt, one answer, whole or in parts as they come.

Sent once: an answer that was lost on its way has been generated, and is billed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from motet.api.errors import ApiError, Unreachable
from motet.api.received_answers import data_of, problem_of
from motet.api.resources import Completion, CompletionPart
from motet.api.steps import Emit, Listing, Operation, change, chunk, opened

Prompt = str | Sequence[Mapping[str, str]]

_PREFIX = "/openai/v1"
_LONGEST = 660.0  # seconds of silence; the service ends a request after 600, unless it is set otherwise
_DONE = b"[DONE]"
# by an error's type, where a stream that has begun cannot have it any more; of others 503
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
}


def create(
    model: str,
    prompt: Prompt,
    *,
    plain: bool = False,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Sequence[str] = (),
) -> Operation[Completion]:
    """The whole answer of `model`: a base, a tuned model, an adapter, or a job, whose newest checkpoint is asked.

    `prompt` is what a user says, or a conversation of messages with `role` and `content`; with `plain` a text that is continued
    as it stands, without the base's chat template. Raises ApiError, `no_executor` where none answers for the base.
    """
    path, body = _request(model, prompt, plain, max_tokens, temperature, top_p, seed, stop)
    answer = (yield from change("POST", path, body, _LONGEST)).json()
    (choice,) = answer["choices"]
    text = choice["text"] if plain else choice["message"]["content"]
    return Completion(model=answer["model"], text=text, finish_reason=choice["finish_reason"], usage=answer["usage"])


def stream(
    model: str,
    prompt: Prompt,
    *,
    plain: bool = False,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Sequence[str] = (),
) -> Listing[CompletionPart]:
    """The answer in parts as they are generated; the last one has the usage. As `create` otherwise. Leaving the iteration ends
    the request. Raises Unreachable where the connection breaks in the middle."""
    path, body = _request(model, prompt, plain, max_tokens, temperature, top_p, seed, stop)
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    yield from opened(path, seconds=_LONGEST, json=streamed)
    held = b""
    while received := (yield from chunk()):
        *frames, held = (held + received).split(b"\n\n")
        for data in filter(None, map(data_of, frames)):
            if data == _DONE:
                return
            if (part := _part(json.loads(data), plain)) is not None:
                yield Emit(part)
    raise Unreachable("the answer broke off in the middle; ask again")


def _part(said: Mapping[str, Any], plain: bool) -> CompletionPart | None:
    """What a chunk adds; None where that is nothing. Raises ApiError where it says an error."""
    if "error" in said:
        raise ApiError(_STATUSES.get(said["error"].get("type"), 503), problem_of(said["error"]))
    if not said["choices"]:
        return CompletionPart(usage=said["usage"])
    (choice,) = said["choices"]
    text = (choice["text"] if plain else choice["delta"].get("content")) or ""
    return CompletionPart(text=text, finish_reason=choice["finish_reason"]) if text or choice["finish_reason"] else None


def _request(
    model: str,
    prompt: Prompt,
    plain: bool,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: Sequence[str],
) -> tuple[str, dict[str, Any]]:
    """The route and the body."""
    how = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, "stop": list(stop) or None}
    given = {name: value for name, value in how.items() if value is not None}
    if plain:
        return f"{_PREFIX}/completions", {"model": model, "prompt": prompt, **given}
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
    return f"{_PREFIX}/chat/completions", {"model": model, "messages": messages, **given}
