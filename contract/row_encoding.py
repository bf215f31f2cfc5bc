"""One row of a data set as tokens, and which of them are learned: the same for the worker that trains on it and for the service
that shows it beforehand. Knows neither files nor splits nor training, and of a tokenizer only what it must be able to do.

A chat row is rendered whole by the model's own template. Learned is every turn of the assistant, or the last: from where the
template's generation prompt ends to where the turn closes, closing mark included. A completion row learns its completion, a
row of plain text all of it, and each the end of sequence after it. A preference row is two: the same conversation with the
preferred and with the other answer, of which the answer is learned. A token is a label if all its characters are learned;
white space in front of them may be part of it.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from contract.task_spec import Objective

Messages = list[dict[str, str]]
Offsets = list[tuple[int, int]]
SFT = Objective()

# Two texts that share neither their first nor their last character: where their renderings part, a turn's content begins.
_MARKS = ("Amber", "Tulip")

# what a template that is wrong or hostile ends with in Jinja's sandbox, beside Jinja's own errors
TEMPLATE_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RowError(ValueError):
    """A row that cannot be turned into tokens. The message says why, without the row's number."""


class TokenizerError(RowError):
    """The base model's tokenizer is not one that rows can be read with."""


class TemplateError(RowError):
    """The base model's chat template cannot write the row."""

    @classmethod
    def missing(cls) -> "TemplateError":
        return cls("the base model has no chat template; use rows of prompt and completion")

    @classmethod
    def undated(cls) -> "TemplateError":
        return cls("the base model's chat template asks for the date, and nobody said when the task was created")

    @classmethod
    def of(cls, fault: Exception) -> "TemplateError":
        return cls(f"the base model's chat template fails: {type(fault).__name__}: {fault}")


class Tokenizer(Protocol):
    """The base model's tokenizer and chat template."""

    @property
    def end(self) -> int | None:
        """The id of the end of a sequence."""

    @property
    def lead(self) -> list[int]:
        """What it puts before any text: the beginning of a sequence, or nothing."""

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Of each text its tokens, nothing put around them."""

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        """Of each text its tokens and the characters [start, end) that they stand for, nothing put around them."""

    def chat(self, messages: Messages, add_generation_prompt: bool, now: datetime | None) -> str:
        """The conversation as the template writes it; its `strftime_now` writes `now`. Raises TemplateError, also where the
        template asks for a date and there is none."""


@dataclass(frozen=True)
class Tokens:
    """One sequence. learned: of each token whether it is a label (predicted from those on its left)."""

    ids: list[int]
    learned: list[bool]

    @property
    def labels(self) -> int:
        return sum(self.learned)


@dataclass(frozen=True)
class Rendered:
    """A chat row's text and the spans of characters [start, end) that are learned."""

    text: str
    learned: tuple[tuple[int, int], ...]


def cut(row: tuple[Tokens, ...], max_seq_len: int) -> tuple[tuple[Tokens, ...], bool]:
    """The row's sequences, none longer than `max_seq_len`, and whether that took anything away."""
    if all(len(tokens.ids) <= max_seq_len for tokens in row):
        return row, False
    return tuple(Tokens(tokens.ids[:max_seq_len], tokens.learned[:max_seq_len]) for tokens in row), True


def learns(row: tuple[Tokens, ...]) -> bool:
    """Whether there is a label in each of the row's sequences; one without is left out of training."""
    return all(any(tokens.learned) for tokens in row)


class RowReader:
    """Turns rows into tokens with the tokenizer of the base model. Raises TokenizerError for one that cannot."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        end = tokenizer.end
        if end is None:
            raise TokenizerError(
                "the base model's tokenizer has no end-of-sequence token, so nothing would teach it where to stop"
            )
        self._tokenizer, self._end, self._lead = tokenizer, end, tokenizer.lead
        self._now: datetime | None = None

    def at(self, moment: datetime) -> Self:
        """The same reader for a task of this moment (its creation time): templates that write the date write this one, in UTC,
        so that a row has the same tokens wherever and whenever it is read."""
        made = copy(self)
        made._now = moment.astimezone(UTC)
        return made

    def read(self, rows: Sequence[dict[str, Any]], objective: Objective = SFT) -> list[tuple[Tokens, ...]]:
        """The rows' sequences, whole (nothing is cut here), in order: one a row, under dpo two. Raises RowError."""
        kinds = [_kind(row, objective) for row in rows]
        chats = [chat for row, kind in zip(rows, kinds, strict=True) for chat in self._chats(row, kind, objective)]
        pairs = [pair for row, kind in zip(rows, kinds, strict=True) for pair in _completions(row, kind)]
        encoded, completed = iter(self._encode_chats(chats)), iter(self._encode_completions(pairs))
        source = {"chat": encoded, "preferred": encoded}
        return [tuple(next(source.get(kind, completed)) for _ in range(_SEQUENCES[kind])) for kind in kinds]

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
            raise TemplateError(f"messages[{place}]: the base model's chat template does not write this turn as it stands")
        return start, end

    def _template(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        if not messages and not add_generation_prompt:
            return ""
        return self._tokenizer.chat(messages, add_generation_prompt, self._now)

    def _encode_chats(self, chats: list[Rendered]) -> Iterator[Tokens]:
        if not chats:
            return
        encoded = self._tokenizer.spans([chat.text for chat in chats])
        for chat, (ids, offsets) in zip(chats, encoded, strict=True):
            yield _tokens(ids, [_is_learned(chat, start, end) for start, end in offsets])

    def _encode_completions(self, pairs: list[tuple[str, str]]) -> Iterator[Tokens]:
        """Prompts and their completions, all encoded together: one call of a fast tokenizer uses all cores."""
        if not pairs:
            return
        prompts = self._tokenizer.ids([asked for asked, _ in pairs])
        whole = self._tokenizer.ids([asked + answer for asked, answer in pairs])
        # Tokens that span the seam do not exist when the model is asked: then the completion is encoded by itself.
        spanned = [at for at, prompt in enumerate(prompts) if whole[at][: len(prompt)] != prompt]
        apart = dict(zip(spanned, self._tokenizer.ids([pairs[at][1] for at in spanned]) if spanned else (), strict=True))
        for at, prompt in enumerate(prompts):
            completion = apart[at] if at in apart else whole[at][len(prompt) :]
            ending = [] if completion[-1:] == [self._end] else [self._end]
            told, learned = [*self._lead, *prompt], [*completion, *ending]
            yield _tokens([*told, *learned], [False] * len(told) + [True] * len(learned))


_KINDS: dict[str, frozenset[str]] = {
    "chat": frozenset({"messages"}),
    "completion": frozenset({"prompt", "completion"}),
    "text": frozenset({"text"}),
    "preferred": frozenset({"input", "preferred_output", "non_preferred_output"}),
    "chosen": frozenset({"prompt", "chosen", "rejected"}),
}
_SEQUENCES = {"chat": 1, "completion": 1, "text": 1, "preferred": 2, "chosen": 2}  # of a row
_OF = {"sft": ("chat", "completion", "text"), "dpo": ("preferred", "chosen")}


def _kind(row: dict[str, Any], objective: Objective) -> str:
    """Which kind of row it is, by its fields. Raises RowError where the objective has no use for it."""
    found = next((kind for kind, names in _KINDS.items() if names <= row.keys()), None)
    if found in _OF[objective.type]:
        return found
    wanted = " or ".join(f"{{{', '.join(sorted(_KINDS[kind]))}}}" for kind in _OF[objective.type])
    has = ", ".join(row) or "nothing"
    raise RowError(f"objective {objective.type} learns from rows of {wanted}; this one has {has}")


def _completions(row: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    """Prompts and answers of a row without a conversation."""
    match kind:
        case "completion":
            return [(row["prompt"], row["completion"])]
        case "text":
            return [("", row["text"])]
        case "chosen":
            return [(row["prompt"], row["chosen"]), (row["prompt"], row["rejected"])]
        case _:
            return []


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


def _tokens(ids: list[int], learned: list[bool]) -> Tokens:
    learned[:1] = [False] * len(learned[:1])  # nothing comes before the first token to predict it from
    return Tokens(ids, learned)
