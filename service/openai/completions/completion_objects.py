"""Makes OpenAI's completion objects, whole or in chunks, of the pieces that an executor sends. Knows no HTTP and no rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from contract.messages.completion_messages import ChoicePiece, CompletionPiece, TokenProbability

_ROLE = {"role": "assistant"}


@dataclass
class Choice:
    """One choice as far as it has come."""

    text: str = ""
    logprobs: list[TokenProbability] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, piece: ChoicePiece) -> None:
        self.text += piece.text
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason


@dataclass
class CompletionAnswer:
    """Gathers an answer, and writes it. chat: whether as a chat completion. asked_logprobs: whether to write any."""

    request_id: str
    model: str
    created: int
    fingerprint: str
    chat: bool
    choices: list[Choice]
    asked_logprobs: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def begin_anew(self) -> None:
        self.choices = [Choice() for _ in self.choices]

    def take(self, piece: CompletionPiece) -> None:
        self.prompt_tokens, self.completion_tokens = piece.prompt_tokens, piece.completion_tokens
        for one in piece.choices:
            self.choices[one.index].take(one)

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "total_tokens": total}

    def whole(self) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        write = self._chat_choice if self.chat else self._text_choice
        return self._object(kind, [write(index, one) for index, one in enumerate(self.choices)]) | {"usage": self.usage}

    def _chat_choice(self, index: int, one: Choice) -> dict[str, Any]:
        message = {**_ROLE, "content": one.text, "refusal": None}
        logprobs = chat_logprobs(one.logprobs) if self.asked_logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": one.finish_reason}

    def _text_choice(self, index: int, one: Choice) -> dict[str, Any]:
        logprobs = text_logprobs(one.logprobs, 0) if self.asked_logprobs else None
        return {"index": index, "text": one.text, "logprobs": logprobs, "finish_reason": one.finish_reason}

    # ---- chunks ------------------------------------------------------------------------------------------------------

    def first_chunks(self) -> Iterator[dict[str, Any]]:
        """Of a chat completion: each choice's role."""
        for index in range(len(self.choices) if self.chat else 0):
            yield self._chunk([self._delta(index, {**_ROLE, "content": "", "refusal": None})])

    def chunks(self, piece: CompletionPiece) -> Iterator[dict[str, Any]]:
        """What the piece adds; call before `take`."""
        for one in piece.choices:
            yield from self._chat_chunks(one) if self.chat else self._text_chunks(one)

    def _chat_chunks(self, one: ChoicePiece) -> Iterator[dict[str, Any]]:
        if one.text or one.logprobs:
            logprobs = chat_logprobs(one.logprobs) if self.asked_logprobs else None
            yield self._chunk([self._delta(one.index, {"content": one.text}, logprobs)])
        if one.finish_reason is not None:
            yield self._chunk([self._delta(one.index, {}, finish_reason=one.finish_reason)])

    def _text_chunks(self, one: ChoicePiece) -> Iterator[dict[str, Any]]:
        before = sum(len(each.token) for each in self.choices[one.index].logprobs)
        logprobs = text_logprobs(one.logprobs, before) if self.asked_logprobs else None
        choice = {"index": one.index, "text": one.text, "logprobs": logprobs, "finish_reason": one.finish_reason}
        yield self._chunk([choice])

    def usage_chunk(self) -> dict[str, Any]:
        """The last one, where usage was asked for."""
        return self._chunk([]) | {"usage": self.usage}

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object("chat.completion.chunk" if self.chat else "text_completion", choices)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": ("chatcmpl-" if self.chat else "cmpl-") + self.request_id.rpartition("_")[2],
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def chat_logprobs(tokens: Iterable[TokenProbability]) -> dict[str, Any]:
    content = [
        {**_token(one.token, one.logprob), "top_logprobs": [_token(token, logprob) for token, logprob in one.top]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    """A token whose text is part of a character has no bytes told."""
    return {"token": token, "logprob": logprob, "bytes": None if "\ufffd" in token else list(token.encode())}


def text_logprobs(tokens: list[TokenProbability], offset: int) -> dict[str, Any]:
    """offset: characters of the tokens before."""
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.token)
    return {
        "tokens": [one.token for one in tokens],
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [dict(one.top) for one in tokens],
        "text_offset": offsets,
    }
