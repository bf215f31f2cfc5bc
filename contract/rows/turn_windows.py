"""Finds turns of a long conversation in a short one: its beginning, the messages around these turns, and its last question. To
find a turn takes renderings of all that stands before it, so finding all of them in the conversation takes its length's square.

Where a template writes a turn by what stands near it, the short conversation has the same text there, which is compared. Knows
no template.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from contract.rows.conversation import Conversation
from contract.rows.tokenizer import Messages, TemplateError

Span = tuple[int, int]
# of a conversation, its rendering and the spans of the turns at these indexes in it; raises TemplateError
Find = Callable[[Conversation, Sequence[int]], tuple[str, list[Span]]]

TURNS = 16  # that one window looks for
_BEFORE, _AFTER = 8, 2  # messages around a window's turns
_FAR = 64  # messages that a place to cut is looked for in


def spans_in_window(
    conversation: Conversation, whole: str, known: tuple[int, Span], places: Sequence[int], following: int | None, find: Find
) -> list[Span] | None:
    """The spans of the turns at `places` in `whole`, the conversation's rendering; None if the window's text is another. known:
    the turn before them, and its span. following: the turn behind them, if there is one."""
    messages, (before, (begin, _)) = conversation.messages, known
    if (cut := _cut(messages, before)) is None:
        return None
    head, on = cut
    rest = (
        messages[on:] if following is None else [*messages[on : (end := _end(messages, following))], *_question(messages, end)]
    )
    turns = [before, *places, *([following] if following is not None else [])]
    try:
        text, ((first, _), *found) = find(
            replace(conversation, messages=[*messages[:head], *rest]), [place - on + head for place in turns]
        )
    except TemplateError:  # it would name a place of the window, and the whole need not be wrong
        return None
    limit = found.pop()[0] if following is not None else len(text)
    until = begin + limit - first
    if text[first:limit] != whole[begin:until] or (following is None and until != len(whole)):
        return None
    if any(end > limit for _, end in found):
        return None
    return [(start - first + begin, end - first + begin) for start, end in found]


def _cut(messages: Messages, place: int) -> tuple[int, int] | None:
    """A window's messages are those before the first index and those from the second on, which lies some before `place`. The
    roles meet there as they do where the first index was taken from, so that a template that minds their order takes it."""
    near = [(at, _meeting(messages, at)) for at in range(place - _BEFORE, max(place - _BEFORE - _FAR, 1), -1)]
    asked = (at for at, (_, role) in near if role == "user")
    went_on = (at for at, (last, role) in near if role == "assistant" != last)  # as after a tool
    on = next(asked, None) or next(went_on, None)
    if on is None:
        return None
    met = (at for at in range(1, min(on, _FAR)) if _meeting(messages, at) == _meeting(messages, on))
    head = next(met, None)
    return None if head is None else (head, on)


def _meeting(messages: Messages, at: int) -> tuple[str, str]:
    """The roles of the message before the index and of that at it."""
    return messages[at - 1]["role"], messages[at]["role"]


def _end(messages: Messages, following: int) -> int:
    """Where a window ends: not between a call and its answers."""
    first = following + 1 + _AFTER
    return next((at for at in range(first, len(messages)) if messages[at]["role"] != "tool"), len(messages))


def _question(messages: Messages, end: int) -> Messages:
    """The last question, if it comes after `end`: what templates write of turns, and where, often depends on it."""
    last = next((at for at in range(len(messages) - 1, end - 1, -1) if messages[at]["role"] == "user"), None)
    return [] if last is None else [messages[last]]
