"""Tokenizes one row of a data set and marks which tokens are labels, alike for the training worker and the service's preview.
Knows no files, no splits and no training, and of a tokenizer only the `Tokenizer` protocol.

A chat row is rendered whole by the model's own template. Its labels are every turn of the assistant, or the last: from the end
of the template's generation prompt to the end of the turn, closing mark included. In a completion row the completion is
learned, in a row of plain text everything, each followed by the end-of-sequence token. A preference row becomes two sequences:
the same conversation with the preferred and with the other answer, and the answer is learned. A token is a label if all its
characters are learned, apart from leading white space.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from contract.rows.conversation import Conversation, conversation_of
from contract.rows.ignored_fields import checked_conversation
from contract.rows.tokenizer import Messages, Offsets, RowError, Tokenizer, TokenizerError, Tools
from contract.rows.turn_spans import Rendered, render
from contract.task_spec import Objective

SFT = Objective()


@dataclass(frozen=True)
class Tokens:
    """One sequence. learned: for each token, whether it is a label (predicted from the tokens to its left)."""

    ids: list[int]
    learned: list[bool]

    @property
    def labels(self) -> int:
        return sum(self.learned)


def truncate(row: tuple[Tokens, ...], max_seq_len: int) -> tuple[tuple[Tokens, ...], bool]:
    """The row's sequences, truncated to `max_seq_len`, and whether anything was removed."""
    if all(len(tokens.ids) <= max_seq_len for tokens in row):
        return row, False
    return tuple(Tokens(tokens.ids[:max_seq_len], tokens.learned[:max_seq_len]) for tokens in row), True


def learns(row: tuple[Tokens, ...]) -> bool:
    """Whether each of the row's sequences has a label, and those of a preference differ: the gradient of equal ones is zero.
    Rows that fail this are skipped in training."""
    return all(any(tokens.learned) for tokens in row) and not equal(row)


def equal(row: tuple[Tokens, ...]) -> bool:
    """Whether the row is a preference of two equal sequences, as the cut may leave them."""
    return len(row) > 1 and row[0] == row[1]


class RowReader:
    """Turns rows into tokens with the base model's tokenizer. Raises TokenizerError if the tokenizer cannot be used."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        end = tokenizer.end
        if end is None:
            raise TokenizerError(
                "the base model's tokenizer has no end-of-sequence token, so nothing would teach it where to stop"
            )
        self._tokenizer, self._end, self._lead = tokenizer, end, tokenizer.lead
        self._now: datetime | None = None

    def at(self, moment: datetime) -> Self:
        """The same reader for a task created at this moment: templates that render the date use this one, in UTC, so that a row
        has the same tokens wherever and whenever it is read."""
        made = copy(self)
        made._now = moment.astimezone(UTC)
        return made

    def read(
        self, rows: Sequence[dict[str, Any]], objective: Objective = SFT, max_seq_len: int | None = None
    ) -> list[tuple[Tokens, ...]]:
        """The rows' sequences in order, untruncated: one per row, under dpo two. max_seq_len: labels behind so many tokens need
        not be marked. Raises RowError."""
        kinds = [_kind(row, objective) for row in rows]
        chats = [chat for row, kind in zip(rows, kinds, strict=True) for chat in self._chats(row, kind, objective, max_seq_len)]
        pairs = [pair for row, kind in zip(rows, kinds, strict=True) for pair in _completions(row, kind)]
        encoded, completed = iter(self._encode_chats(chats)), iter(self._encode_completions(pairs))
        source = {"chat": encoded, "preferred": encoded}
        return [tuple(next(source.get(kind, completed)) for _ in range(_SEQUENCES[kind])) for kind in kinds]

    def chat_prompt(self, messages: Messages) -> list[int]:
        """The conversation's tokens, up to where the assistant's answer begins. Raises RowError."""
        return self._tokenizer.ids([self._tokenizer.chat(messages, add_generation_prompt=True, now=self._now)])[0]

    def text_prompt(self, text: str) -> list[int]:
        """A text's tokens, behind those that precede any text."""
        return [*self._lead, *self._tokenizer.ids([text])[0]]

    def _chats(self, row: dict[str, Any], kind: str, objective: Objective, max_seq_len: int | None) -> list[Rendered]:
        if kind == "chat":
            last = objective.turns == "last"
            return [self.render(row["messages"], tools=row.get("tools"), last=last, max_seq_len=max_seq_len)]
        if kind == "preferred":
            asked: Messages = row["input"]["messages"]
            tools = row["input"].get("tools")
            names = ("preferred_output", "non_preferred_output")
            return [self.render([*asked, *row[name]], tools=tools, after=len(asked), answer=name) for name in names]
        return []

    def render(
        self,
        messages: Messages,
        after: int = 0,
        last: bool = False,
        tools: Tools | None = None,
        answer: str | None = None,
        max_seq_len: int | None = None,
    ) -> Rendered:
        """The conversation as the template renders it, with every turn of the assistant from message `after` on learned, or its
        last alone; turns of weight 0 count as none. Raises RowError if the template drops the assistant's text, or anything of
        tools, calls, tools' answers and a developer's words; `answer` names the field that a preference's answer is in.
        max_seq_len: as of `read`."""
        conversation = checked_conversation(
            lambda text_arguments: conversation_of(messages, tools, self._tokenizer, text_arguments, answer), self._template
        )
        return render(conversation, self._template, after, last, lambda text: self._cut(text, max_seq_len))

    def _cut(self, text: str, max_seq_len: int | None) -> int:
        """How many characters the first `max_seq_len` tokens reach."""
        ((_, offsets),) = self._tokenizer.spans([text])
        return max((end for _, end in offsets[:max_seq_len]), default=0)

    def _template(self, conversation: Conversation, add_generation_prompt: bool = False) -> str:
        return self._tokenizer.chat(conversation.messages, add_generation_prompt, self._now, conversation.tools)

    def _encode_chats(self, chats: list[Rendered]) -> Iterator[Tokens]:
        if not chats:
            return
        encoded = self._tokenizer.spans([chat.text for chat in chats])
        for chat, (ids, offsets) in zip(chats, encoded, strict=True):
            yield _tokens(ids, _learned(chat, offsets))

    def _encode_completions(self, pairs: list[tuple[str, str]]) -> Iterator[Tokens]:
        """Encodes prompts and completions in batches, so that a fast tokenizer uses all cores."""
        if not pairs:
            return
        prompts = self._tokenizer.ids([asked for asked, _ in pairs])
        whole = self._tokenizer.ids([asked + answer for asked, answer in pairs])
        # If a token spans the seam, the completion is encoded by itself: at inference the prompt ends there.
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
_SEQUENCES = {"chat": 1, "completion": 1, "text": 1, "preferred": 2, "chosen": 2}  # sequences per row
_OF = {"sft": ("chat", "completion", "text"), "dpo": ("preferred", "chosen")}


def _kind(row: dict[str, Any], objective: Objective) -> str:
    """The row's kind, from its fields. Raises RowError if the objective cannot use it."""
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


def _learned(chat: Rendered, offsets: Offsets) -> list[bool]:
    """For each token, whether its characters, apart from leading white space, are within one of the chat's learned spans."""
    spans, found = sorted(chat.learned), [False] * len(offsets)
    begins = [begin for begin, _ in spans]
    for place, (start, end) in enumerate(offsets):
        before = bisect_left(begins, end)
        if before:
            begin, stop = spans[before - 1]  # spans do not overlap
            found[place] = end <= stop and start < stop and (start >= begin or chat.text[start:begin].isspace())
    return found


def _tokens(ids: list[int], learned: list[bool]) -> Tokens:
    learned[:1] = [False] * len(learned[:1])  # no token precedes the first one to predict it from
    return Tokens(ids, learned)
