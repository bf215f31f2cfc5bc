"""One row of a data set as tokens, and which of them are learned. Knows neither files nor splits nor training.

A chat row is rendered whole by the model's own template. Learned is every turn of the assistant, or the last: from where the
template's generation prompt ends to where the turn closes, closing mark included. A completion row learns its completion, a
row of plain text all of it, and each the end of sequence after it. A preference row is two: the same conversation with the
preferred and with the other answer, of which the answer is learned. A token is a label if all its characters are learned;
white space in front of them may be part of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from contract.spec import Objective
from worker.model.batch import Example

Messages = list[dict[str, str]]
SFT = Objective()

# Two texts that share neither their first nor their last character: where their renderings part, a turn's content begins.
_MARKS = ("Amber", "Tulip")


# what a template that is wrong or hostile ends with in Jinja's sandbox, where transformers renders it
_FROM_TEMPLATES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RowError(ValueError):
    """A row that cannot be turned into tokens. The message says why, without the row's number."""


@dataclass(frozen=True)
class Rendered:
    """A chat row's text and the spans of characters [start, end) that are learned."""

    text: str
    learned: tuple[tuple[int, int], ...]


class RowReader:
    """Turns rows into examples with the tokenizer of the base model, which must be a fast one (it tells offsets)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise RowError(
                "the base model has no fast tokenizer (tokenizer.json), which tells where its tokens lie in the text"
            )
        if tokenizer.eos_token_id is None:
            raise RowError("the base model's tokenizer has no end-of-sequence token, so nothing would teach it where to stop")
        self._tokenizer = tokenizer
        bos = tokenizer.bos_token_id
        self._lead: list[int] = [bos] if bos is not None and self._ids("", special=True)[:1] == [bos] else []

    def read(self, rows: Sequence[dict[str, Any]], objective: Objective = SFT) -> list[tuple[Example, ...]]:
        """The rows' examples, whole (nothing is cut here), in order: one a row, under dpo two. Raises RowError."""
        kinds = [_kind(row, objective) for row in rows]
        chats = [chat for row, kind in zip(rows, kinds, strict=True) for chat in self._chats(row, kind, objective)]
        encoded = iter(self._encode_chats(chats))
        read: list[tuple[Example, ...]] = []
        for row, kind in zip(rows, kinds, strict=True):
            match kind:
                case "chat":
                    read.append((next(encoded),))
                case "completion":
                    read.append((self._encode_completion(row["prompt"], row["completion"]),))
                case "text":
                    read.append((self._encode_completion("", row["text"]),))
                case "preferred":
                    read.append((next(encoded), next(encoded)))
                case _:
                    read.append(tuple(self._encode_completion(row["prompt"], row[name]) for name in ("chosen", "rejected")))
        return read

    def _chats(self, row: dict[str, Any], kind: str, objective: Objective) -> list[Rendered]:
        if kind == "chat":
            return [self.render(row["messages"], last=objective.turns == "last")]
        if kind == "preferred":
            asked: Messages = row["input"]["messages"]
            answers = (row["preferred_output"], row["non_preferred_output"])
            return [self.render([*asked, *answer], after=len(asked)) for answer in answers]
        return []

    def render(self, messages: Messages, after: int = 0, last: bool = False) -> Rendered:
        """The conversation as the template writes it, learned from message `after` on, every turn of the assistant or its
        last. Raises RowError if the template hides what the assistant said."""
        whole = self._template(messages)
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= after]
        return Rendered(whole, tuple(self._span(messages, place, whole) for place in (turns[-1:] if last else turns)))

    def _span(self, messages: Messages, place: int, whole: str) -> tuple[int, int]:
        """Where the assistant's turn number `place` is learned, also in templates that write earlier turns differently."""
        start, end = self._content(messages, place, whole)
        prompt = self._template(messages[:place], add_generation_prompt=True)
        if len(prompt) <= start and whole.startswith(prompt):
            start = len(prompt)
        if place == len(messages) - 1:
            return start, len(whole)
        until = messages[: place + 1]
        closed = self._template(until)
        closing = closed[self._content(until, place, closed)[1] :]
        return start, end + _common(whole[end:], closing)

    def _content(self, messages: Messages, place: int, whole: str) -> tuple[int, int]:
        """Where the content of message `place` lies in the rendering `whole`, found by writing two marks in its stead."""
        one, other = (
            self._template([*messages[:place], {**messages[place], "content": mark}, *messages[place + 1 :]]) for mark in _MARKS
        )
        before, after = _common(one, other), _common(one[::-1], other[::-1])
        start, end = before, len(whole) - after
        if one == other or start > end or not whole.startswith(one[:before]) or not whole.endswith(one[len(one) - after :]):
            raise RowError(f"messages[{place}]: the base model's chat template does not write this turn as it stands")
        return start, end

    def _template(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        if self._tokenizer.chat_template is None:
            raise RowError("the base model has no chat template; use rows of prompt and completion")
        if not messages and not add_generation_prompt:
            return ""
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
            )
        except _FROM_TEMPLATES as error:
            raise RowError(f"the base model's chat template fails: {type(error).__name__}: {error}") from None

    def _encode_chats(self, chats: list[Rendered]) -> Iterator[Example]:
        if not chats:
            return
        texts = [chat.text for chat in chats]
        encoded = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for chat, ids, offsets in zip(chats, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            yield _example(ids, [_is_learned(chat, start, end) for start, end in offsets])

    def _encode_completion(self, asked: str, answer: str) -> Example:
        prompt, both = self._ids(asked), self._ids(asked + answer)
        # Tokens that span the seam do not exist when the model is asked: then the completion is encoded by itself.
        completion = both[len(prompt) :] if both[: len(prompt)] == prompt else self._ids(answer)
        ending = [] if completion[-1:] == [self._tokenizer.eos_token_id] else [self._tokenizer.eos_token_id]
        told, learned = [*self._lead, *prompt], [*completion, *ending]
        return _example([*told, *learned], [False] * len(told) + [True] * len(learned))

    def _ids(self, text: str, special: bool = False) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


_KINDS: dict[str, frozenset[str]] = {
    "chat": frozenset({"messages"}),
    "completion": frozenset({"prompt", "completion"}),
    "text": frozenset({"text"}),
    "preferred": frozenset({"input", "preferred_output", "non_preferred_output"}),
    "chosen": frozenset({"prompt", "chosen", "rejected"}),
}
_OF = {"sft": ("chat", "completion", "text"), "dpo": ("preferred", "chosen")}


def _kind(row: dict[str, Any], objective: Objective) -> str:
    """Which kind of row it is, by its fields. Raises RowError where the objective has no use for it."""
    found = next((kind for kind, names in _KINDS.items() if names <= row.keys()), None)
    if found in _OF[objective.type]:
        return found
    wanted = " or ".join(f"{{{', '.join(sorted(_KINDS[kind]))}}}" for kind in _OF[objective.type])
    has = ", ".join(row) or "nothing"
    raise RowError(f"objective {objective.type} learns from rows of {wanted}; this one has {has}")


def _is_learned(chat: Rendered, start: int, end: int) -> bool:
    return any(
        start < stop and begin < end <= stop and (start >= begin or chat.text[start:begin].isspace())
        for begin, stop in chat.learned
    )


def _common(one: str, other: str) -> int:
    """How many characters two texts share at their beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _example(ids: Sequence[int], mask: Sequence[bool]) -> Example:
    loss_mask = np.array(mask, dtype=np.bool_)
    loss_mask[:1] = False  # nothing comes before the first token to predict it from
    return Example(np.array(ids, dtype=np.int32), loss_mask)
