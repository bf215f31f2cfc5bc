"""Checks one line of a data set: a chat, a prompt with its completion, a text, or a preference. Pure. Knows neither the file
nor its other lines.

A chat row is {"messages": [{"role", "content"}, ...]}: a system message may only come first, and at least one turn must be the
assistant's, since training learns only those. A completion row is {"prompt", "completion"}; the prompt may be empty. A text
row is {"text"}. A preference row is OpenAI's {"input": {"messages"}, "preferred_output", "non_preferred_output"}, each output a
list with one assistant turn, or {"prompt", "chosen", "rejected"}.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_ROLES = ("system", "user", "assistant")


class Format(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    TEXT = "text"
    PREFERENCE = "preference"


_SHAPES = {
    Format.CHAT: 'a chat row is {"messages": [...]}',
    Format.COMPLETION: 'a completion row is {"prompt": "...", "completion": "..."}',
    Format.TEXT: 'a text row is {"text": "..."}',
    Format.PREFERENCE: (
        'a preference row is {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]} '
        'or {"prompt": "...", "chosen": "...", "rejected": "..."}'
    ),
}
_INSTRUCTION = (  # Alpaca's fields
    'write it as {"prompt": instruction and input, "completion": output}, or as a chat row of {"messages": [...]}'
)
_OUTPUTS = ("preferred_output", "non_preferred_output")
_ANSWERS = ("chosen", "rejected")


@dataclass(frozen=True)
class RowMistake:
    """One mistake in a row. `path` is within the row, such as messages[1].role; None means the row itself."""

    path: str | None
    code: str
    message: str


class _Unreadable(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_row(line: bytes) -> tuple[Format | None, list[RowMistake]]:
    """The row's format (None if unknown) and its mistakes. `line` comes without its newline."""
    try:
        row = _read(line)
    except _Unreadable as error:
        return None, [RowMistake(None, error.code, str(error))]
    if not isinstance(row, dict):
        return None, [RowMistake(None, "not_an_object", f"holds {_kind(row)}; a row is a JSON object")]
    if "instruction" in row:
        return None, [RowMistake(None, "format_unknown", f"is an instruction row; {_INSTRUCTION}")]
    if "messages" in row:
        return Format.CHAT, [*_unknown(row, ("messages",), Format.CHAT), *_messages("messages", row["messages"])]
    if "input" in row or any(name in row for name in _OUTPUTS):
        return Format.PREFERENCE, [*_unknown(row, ("input", *_OUTPUTS), Format.PREFERENCE), *_preference(row)]
    if any(name in row for name in _ANSWERS):
        return Format.PREFERENCE, [*_unknown(row, ("prompt", *_ANSWERS), Format.PREFERENCE), *_answers(row)]
    if "text" in row:
        return Format.TEXT, [*_unknown(row, ("text",), Format.TEXT), *_text("text", row, "text")]
    if "prompt" in row or "completion" in row:
        return Format.COMPLETION, [*_unknown(row, ("prompt", "completion"), Format.COMPLETION), *_completion(row)]
    return None, [RowMistake(None, "format_unknown", f"has no known format: {'; '.join(_SHAPES.values())}")]


def _read(line: bytes) -> Any:
    if line.startswith(BOM_UTF8):
        raise _Unreadable("byte_order_mark", "begins with a byte order mark, which may only begin the file; remove it")
    try:
        return _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise _Unreadable("not_utf8", f"is not UTF-8: {error.reason} at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise _Unreadable("not_json", f"is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None
    except RecursionError:
        raise _Unreadable("not_json", "is nested too deeply") from None
    except _Unreadable:
        raise
    except ValueError as error:
        raise _Unreadable("not_json", f"is not usable JSON: {str(error).partition(';')[0]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Unreadable("duplicate_key", f"has the key {twice!r} twice in one object")
    return made


def _constant(name: str) -> Any:
    raise _Unreadable("not_json", f"holds {name}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _unknown(row: dict[str, Any], known: Sequence[str], format: Format) -> Iterator[RowMistake]:
    for name in row:
        if name not in known:
            yield RowMistake(name, "unknown_field", f"is not part of the format: {_SHAPES[format]}; remove it")


def _messages(path: str, messages: Any, learned: bool = True) -> Iterator[RowMistake]:
    """Check a list of messages. `learned`: require an assistant turn, since training learns only those."""
    if not isinstance(messages, list) or not messages:
        yield RowMistake(path, "no_messages", 'must be a list of at least one {"role", "content"}')
        return
    for index, message in enumerate(messages):
        yield from _message(f"{path}[{index}]", index, message)
    if learned and not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages):
        yield RowMistake(path, "no_assistant_turn", "has no turn of the assistant, so there is nothing to learn from it")


def _preference(row: dict[str, Any]) -> Iterator[RowMistake]:
    asked = row.get("input")
    if not isinstance(asked, dict):
        yield RowMistake("input", "missing" if "input" not in row else "not_an_object", 'must be {"messages": [...]}')
    else:
        for name in asked:
            if name != "messages":
                yield RowMistake(f"input.{name}", "unknown_field", "is not part of an input, which has messages; remove it")
        yield from _messages("input.messages", asked.get("messages"), learned=False)
    for name in _OUTPUTS:
        output = row.get(name)
        if not isinstance(output, list) or len(output) != 1:
            yield RowMistake(name, "not_one_answer", 'must be a list of one turn, {"role": "assistant", "content": "..."}')
            continue
        yield from _message(f"{name}[0]", 1, output[0])
        if isinstance(output[0], dict) and output[0].get("role") in ("system", "user"):
            yield RowMistake(f"{name}[0].role", "wrong_role", "must be assistant")
    if not any(name not in row for name in _OUTPUTS) and row[_OUTPUTS[0]] == row[_OUTPUTS[1]]:
        yield RowMistake(_OUTPUTS[1], "same_answers", "equals preferred_output, so nothing is preferred")


def _answers(row: dict[str, Any]) -> Iterator[RowMistake]:
    yield from _text("prompt", row, "prompt", may_be_empty=True)
    for name in _ANSWERS:
        yield from _text(name, row, name)
    if row.get("chosen") is not None and row.get("chosen") == row.get("rejected"):
        yield RowMistake("rejected", "same_answers", "equals chosen, so nothing is preferred")


def _message(path: str, index: int, message: Any) -> Iterator[RowMistake]:
    if not isinstance(message, dict):
        yield RowMistake(path, "not_an_object", f'holds {_kind(message)}; a message is {{"role", "content"}}')
        return
    for name in message:
        if name not in ("role", "content"):
            yield RowMistake(
                f"{path}.{name}", "unknown_field", "is not part of a message, which has role and content; remove it"
            )
    role = message.get("role")
    if role not in _ROLES:
        given = f", got {role!r:.40}" if "role" in message else ""
        yield RowMistake(f"{path}.role", "wrong_role", f"must be system, user or assistant{given}")
    elif role == "system" and index > 0:
        yield RowMistake(f"{path}.role", "system_not_first", "is system, which may only be the first message")
    yield from _text(f"{path}.content", message, "content")


def _completion(row: dict[str, Any]) -> Iterator[RowMistake]:
    yield from _text("prompt", row, "prompt", may_be_empty=True)
    yield from _text("completion", row, "completion")


def _text(path: str, holder: dict[str, Any], name: str, may_be_empty: bool = False) -> Iterator[RowMistake]:
    if name not in holder:
        yield RowMistake(path, "missing", "is required")
        return
    text = holder[name]
    if not isinstance(text, str):
        yield RowMistake(path, "not_a_text", f"must be a text, got {_kind(text)}")
    elif not may_be_empty and not text.strip():
        yield RowMistake(path, "empty", "holds nothing but white space" if text else "is empty")
    elif _has_surrogate(text):
        yield RowMistake(path, "lone_surrogate", "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else kinds[type(value)]
