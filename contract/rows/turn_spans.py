"""Which characters of a rendered conversation are learned: the assistant's turns, from the end of the template's generation
prompt to the end of the turn, closing mark included.

Templates tell nothing of where they write what, so it is found by rendering the conversation with other texts in a turn's place
and comparing. Knows no tokens.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from contract.rows.conversation import Conversation
from contract.rows.tokenizer import TemplateError
from contract.rows.turn_windows import TURNS, Span, spans_in_window

Write = Callable[[Conversation, bool], str]  # the conversation as rendered, with the generation prompt or without

# Two texts that differ in their first and in their last character: where their renderings diverge, a turn's content begins.
_MARKS = ("Amber", "Tulip")
_BLANK = re.compile(r"\s+")
_FEW = 64  # turns that are looked for at once; a row of more is looked at no further than it is cut, and mostly in windows
_MISSES = 8  # windows that have not the whole's text, after which no more are tried


@dataclass(frozen=True)
class Rendered:
    """A chat row's text and the spans of characters [start, end) that are learned."""

    text: str
    learned: tuple[tuple[int, int], ...]


def render(
    conversation: Conversation, write: Write, after: int = 0, last: bool = False, cut: Callable[[str], int] = len
) -> Rendered:
    """The conversation as the template renders it, with every turn of the assistant from message `after` on learned, or its
    last alone; turns of weight 0 count as none. cut: of the text the characters that are read, asked where turns are many;
    those that begin later are left out. Raises TemplateError if the template leaves out anything of a learned turn's text but
    white space."""
    places = [
        place
        for place, message in enumerate(conversation.messages)
        if message["role"] == "assistant" and place >= after and conversation.learned[place]
    ]
    places = places[-1:] if last else places
    turns = _Turns(conversation, write)
    found = turns.spans(places) if len(places) <= _FEW else _spans_of_many(turns, places, cut(turns.whole))
    return Rendered(turns.whole, tuple(found))


def _spans_of_many(turns: "_Turns", places: Sequence[int], until: int) -> list[Span]:
    """The spans of these turns, up to the first that begins at `until`. The first few are looked for in the whole conversation,
    the others in windows of it. What a template writes may depend on what is far away, so some of these, at distances that
    double, and the last, are looked for in the whole as well; if one is not there, all are."""
    found, windows, misses = turns.spans(places[:_FEW], until), 0, 0
    while len(found) < len(places) and found[-1][0] < until:
        at, some = len(found), places[len(found) : len(found) + TURNS]
        following = places[at + TURNS] if at + TURNS < len(places) else None
        known = (places[at - 1], found[-1])
        near = spans_in_window(turns.all, turns.whole, known, some, following, turns.within) if misses < _MISSES else None
        if near is None:
            misses += 1
            near = turns.spans(some, until)
        else:
            windows += 1
            read = sum(start < until for start, _ in near)
            if read and (following is None or windows & (windows - 1) == 0) and not turns.has(some[read - 1], near[read - 1]):
                del found[_FEW:]
                misses = _MISSES
                continue
        found += near
    return [span for span in found if span[0] < until]


class _Turns:
    """Finds the turns of one conversation in `whole`, its rendering, also where earlier turns are rendered differently."""

    def __init__(self, conversation: Conversation, write: Write) -> None:
        self.all, self._write = conversation, write
        self.whole = write(conversation, False)
        self._prompt = lru_cache(maxsize=1)(lambda place: write(conversation.before(place), True))
        self._plain = dict[int, tuple[int, int]]()

    def spans(self, places: Sequence[int], until: int | None = None) -> list[Span]:
        """The learned spans of the assistant's turns at these indexes, in order; behind the first that begins at `until` or
        later, none. A turn takes as long as all that stands before it."""
        self._plain, found = self._plain_answers(places), list[Span]()
        for place in places:
            found.append(self._span(place))
            if until is not None and found[-1][0] >= until:
                break
        return found

    def has(self, place: int, span: Span) -> bool:
        """Whether the assistant's turn at index `place` has this span."""
        try:
            return self.spans([place]) == [span]
        except TemplateError:  # which is told once its turn comes
            return False

    def within(self, window: Conversation, places: Sequence[int]) -> tuple[str, list[Span]]:
        """The rendering of another conversation, and the spans of these turns in it. Raises TemplateError."""
        turns = _Turns(window, self._write)
        return turns.whole, turns.spans(places)

    def _span(self, place: int) -> tuple[int, int]:
        """The learned span of the assistant's turn at index `place`."""
        message = self.all.messages[place]
        start, end = self._calls(place) if "tool_calls" in message else self._answer(place)
        content = message.get("content", "")
        # its beginning may be of the generation prompt, as an opened <think>
        if _letters(content) not in _letters(self.whole[max(0, start - len(content)) : end]):
            raise TemplateError.shortened(f"{self.all.path(place)}.content", self.all.answer is not None)
        return start, end

    def _answer(self, place: int) -> tuple[int, int]:
        """Of a turn that is a text alone."""
        start, end = self._plain.get(place) or self._marked_answer(place)
        if place == len(self.all.messages) - 1:
            return start, len(self.whole)
        until = self.all.before(place + 1)
        closed = self._write(until, False)
        alike = self._is_bare(place) and closed.startswith(self.whole[:end])
        closing = closed[end if alike else self._content(until, place, closed)[1] :]
        return start, end + common_prefix(self.whole[end:], closing)

    def _is_bare(self, place: int) -> bool:
        """Whether the turn is a text alone, with no white space around it, which a template might trim."""
        message = self.all.messages[place]
        content: str = message.get("content", "")
        return "tool_calls" not in message and content == content.strip() != ""

    def _plain_answers(self, places: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Of turns whose text stands as it is behind their generation prompt: where that prompt ends, and where the text does.
        One rendering with markers in all their places shows that they stand there, and nowhere else."""
        found = {place: ends for place in places if (ends := self._behind_prompt(place)) is not None}
        mark, marked, expected, done = _MARKS[0], self.all, list[str](), 0
        if not found or mark in self.whole:
            return {}
        for place, (_, end) in found.items():
            expected += (self.whole[done : end - len(self.all.messages[place]["content"])], mark)
            marked, done = _saying(marked, place, mark), end
        return found if "".join([*expected, self.whole[done:]]) == self._write(marked, False) else {}

    def _behind_prompt(self, place: int) -> tuple[int, int] | None:
        if place == 0 or not self._is_bare(place) or not self.whole.startswith(prompt := self._prompt(place)):
            return None
        content: str = self.all.messages[place]["content"]
        blank = _BLANK.match(self.whole, len(prompt))
        begin = blank.end() if blank else len(prompt)
        return (len(prompt), begin + len(content)) if self.whole.startswith(content, begin) else None

    def _marked_answer(self, place: int) -> tuple[int, int]:
        """Where the turn begins and its text ends, as markers in its place tell."""
        start, end, exact = self._content(self.all, place, self.whole)
        prompted = self._after_prompt(place, self.whole, start)
        if prompted is None and not exact:
            raise _unlike_others(self.all.path(place))
        return start if prompted is None else prompted, end

    def _content(self, within: Conversation, place: int, whole: str) -> tuple[int, int, bool]:
        """The span of message `place`'s content in the rendering `whole`, found by rendering two marker texts in its place, and
        whether it begins there: what a template writes of a thought begins before, where markers, which hold none, go on
        otherwise."""
        one, other = others = [self._write(_saying(within, place, mark), False) for mark in _MARKS]
        before, after = common_prefix(one, other), common_prefix(one[::-1], other[::-1])
        first, rest = _unlike(whole, others)
        if one == other or rest < after or first + rest > len(whole):
            raise _unlike_others(self.all.path(place))
        return first, len(whole) - rest, first == before

    def _calls(self, place: int) -> tuple[int, int]:
        """Of a turn with calls of tools. Their arguments stand nowhere else, so they are where the turn is found; its ends are
        told by the conversation that ends with this turn, whose rendering is `closed`."""
        whole, ends = self.whole, place == len(self.all.messages) - 1
        first, last = self._arguments(self.all, place, whole)
        until = self.all if ends else self.all.before(place + 1)
        closed = whole if ends else self._write(until, False)
        first_closed, last_closed = (first, last) if ends else self._arguments(until, place, closed)
        if whole[first:last] != closed[first_closed:last_closed]:
            raise _unclear(self.all.path(place))
        start = self._opening(self.all, place, whole, first)
        if start is None:
            opened = self._opening(until, place, closed, first_closed)
            if opened is None:
                opened = self._plain_opening(place, closed)
            if opened > first_closed or not whole[:first].endswith(closed[opened:first_closed]):
                raise _unclear(self.all.path(place))
            start = first - (first_closed - opened)
        return start, len(whole) if ends else last + common_prefix(whole[last:], closed[last_closed:])

    def _arguments(self, within: Conversation, place: int, text: str) -> tuple[int, int]:
        """From the first to the last character of `text` that depends on the arguments of message `place`'s calls."""
        calls = len(within.messages[place]["tool_calls"])
        others = [self._write(within.called_with(place, [{mark: mark}] * calls), False) for mark in _MARKS]
        if others[0] == others[1]:
            raise TemplateError.ignored(f"{self.all.path(place)}.tool_calls")
        first, rest = _unlike(text, others)
        return first, max(first, len(text) - rest)

    def _opening(self, within: Conversation, place: int, text: str, limit: int) -> int | None:
        """Where the turn begins in `text`, at most at `limit`: after the generation prompt, or where its content stands or
        would stand; None if neither tells."""
        start = self._after_prompt(place, text, limit)
        if start is not None:
            return start
        others = [self._write(_saying(within, place, mark), False) for mark in _MARKS]
        first, _ = _unlike(text, others)
        return first if others[0] != others[1] and first <= limit else None

    def _after_prompt(self, place: int, text: str, limit: int) -> int | None:
        """The end of the turn's generation prompt, if `text` begins with it and goes on to `limit` or further. A first message
        has none: transformers renders no conversation without messages."""
        if place == 0:
            return None
        prompt = self._prompt(place)
        return len(prompt) if len(prompt) <= limit and text.startswith(prompt) else None

    def _plain_opening(self, place: int, closed: str) -> int:
        """Where a turn of text alone would part from `closed`, which ends with turn `place`."""
        until = self.all.before(place + 1)
        plain = [until.with_message(place, {"role": "assistant", "content": mark}) for mark in _MARKS]
        return _unlike(closed, [self._write(one, False) for one in plain])[0]


def common_prefix(one: str, other: str) -> int:
    """Length of two texts' common prefix."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _unlike(text: str, others: list[str]) -> tuple[int, int]:
    """Lengths of the prefix and the suffix that `text` shares with all of `others`."""
    before = min(common_prefix(text, other) for other in others)
    return before, min(common_prefix(text[::-1], other[::-1]) for other in others)


def _saying(within: Conversation, place: int, text: str) -> Conversation:
    return within.with_message(place, {**within.messages[place], "content": text})


def _letters(text: str) -> str:
    """The text without its white space, which templates trim."""
    return "".join(text.split())


def _unlike_others(path: str) -> TemplateError:
    return TemplateError(f"{path}: the base model's chat template does not write this turn as it stands")


def _unclear(path: str) -> TemplateError:
    return TemplateError(
        f"{path}.tool_calls: where this turn begins or ends cannot be told from what the base model's chat template "
        "writes; take the row out, or take another base"
    )
