"""Checks one line of a data set: a chat, a prompt with its completion, a text, or a preference. Pure. Knows neither the file
nor its other lines.

A chat row is {"messages": [{"role", "content"}, ...]}, with or without tools: a system message may only come first, and at
least one turn must be the assistant's, since training learns only those. A completion row is {"prompt", "completion"}; the
prompt may be empty. A text row is {"text"}. A preference row is OpenAI's {"input": {"messages"}, "preferred_output",
"non_preferred_output"}, each output a list with one assistant turn, or {"prompt", "chosen", "rejected"}.
"""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from contract.wording.other_formats import other_row
from service.files import message_checks
from service.files.row_values import RowMistake, UnreadableJson, kind, read, text


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
_TOOLS = ("tools", "parallel_tool_calls")
_OUTPUTS = ("preferred_output", "non_preferred_output")
_ANSWERS = ("chosen", "rejected")


class CheckedRow(NamedTuple):
    """A row's format, None if unknown, and its mistakes. prompt_bytes: about what a preference's prompt takes of its
    line; training reads it before either answer. tools: whether it has any."""

    format: Format | None
    mistakes: list[RowMistake]
    prompt_bytes: int = 0
    tools: bool = False


def check_row(line: bytes) -> CheckedRow:
    """`line` comes without its newline."""
    try:
        row = read(line)
    except UnreadableJson as error:
        return CheckedRow(None, [RowMistake(None, error.code, str(error))])
    if not isinstance(row, dict):
        return CheckedRow(None, [RowMistake(None, "not_an_object", f"holds {kind(row)}; a row is a JSON object")])
    if (said := other_row(row)) is not None:
        return CheckedRow(None, [RowMistake(None, "format_unknown", said)])
    if "messages" in row:
        known = ("messages", *_TOOLS)
        told = [*_tools("", row), *message_checks.messages("messages", row["messages"])]
        return CheckedRow(Format.CHAT, [*_unknown(row, known, Format.CHAT), *told], tools=bool(row.get("tools")))
    if "input" in row or any(name in row for name in _OUTPUTS):
        return _pair(line, row, _OUTPUTS, [*_unknown(row, ("input", *_OUTPUTS), Format.PREFERENCE), *_preference(row)])
    if any(name in row for name in _ANSWERS):
        return _pair(line, row, _ANSWERS, [*_unknown(row, ("prompt", *_ANSWERS), Format.PREFERENCE), *_answers(row)])
    if "text" in row:
        return CheckedRow(Format.TEXT, [*_unknown(row, ("text",), Format.TEXT), *text("text", row, "text")])
    if "prompt" in row or "completion" in row:
        return CheckedRow(Format.COMPLETION, [*_unknown(row, ("prompt", "completion"), Format.COMPLETION), *_completion(row)])
    return CheckedRow(None, [RowMistake(None, "format_unknown", f"has no known format: {'; '.join(_SHAPES.values())}")])


def _pair(line: bytes, row: dict[str, Any], answers: Sequence[str], mistakes: list[RowMistake]) -> CheckedRow:
    """A preference with answers under these names; its prompt is what else is in the line."""
    if mistakes:
        return CheckedRow(Format.PREFERENCE, mistakes)
    said = json.dumps([row[name] for name in answers], ensure_ascii=line.isascii())
    tools = bool(row.get("input", {}).get("tools"))
    return CheckedRow(Format.PREFERENCE, mistakes, max(0, len(line) - len(said.encode())), tools)


def _unknown(row: dict[str, Any], known: Sequence[str], format: Format) -> Iterator[RowMistake]:
    for name in row:
        if name == "functions" and "tools" in known:
            yield RowMistake(name, "old_form", message_checks.OLD_TOOLS)
        elif name not in known:
            yield RowMistake(name, "unknown_field", f"is not part of the format: {_SHAPES[format]}; remove it")


def _tools(path: str, holder: dict[str, Any]) -> Iterator[RowMistake]:
    yield from message_checks.tools(f"{path}tools", holder.get("tools"))
    yield from message_checks.parallel(f"{path}parallel_tool_calls", holder.get("parallel_tool_calls"))


def _preference(row: dict[str, Any]) -> Iterator[RowMistake]:
    asked = row.get("input")
    if not isinstance(asked, dict):
        yield RowMistake("input", "missing" if "input" not in row else "not_an_object", 'must be {"messages": [...]}')
    else:
        for name in asked:
            if name == "functions":
                yield RowMistake(f"input.{name}", "old_form", message_checks.OLD_TOOLS)
            elif name not in ("messages", *_TOOLS):
                message = "is not part of an input, which has messages, tools and parallel_tool_calls; remove it"
                yield RowMistake(f"input.{name}", "unknown_field", message)
        yield from _tools("input.", asked)
        yield from message_checks.messages("input.messages", asked.get("messages"), learned=False)
    for name in _OUTPUTS:
        output = row.get(name)
        if not isinstance(output, list) or len(output) != 1:
            yield RowMistake(name, "not_one_answer", 'must be a list of one turn, {"role": "assistant", "content": "..."}')
            continue
        yield from message_checks.message(f"{name}[0]", 1, output[0], weighted=False)
        if isinstance(output[0], dict) and output[0].get("role") in ("user", "tool"):
            yield RowMistake(f"{name}[0].role", "wrong_role", "must be assistant")
    if not any(name not in row for name in _OUTPUTS) and row[_OUTPUTS[0]] == row[_OUTPUTS[1]]:
        yield RowMistake(_OUTPUTS[1], "same_answers", "equals preferred_output, so nothing is preferred")


def _answers(row: dict[str, Any]) -> Iterator[RowMistake]:
    yield from text("prompt", row, "prompt", may_be_empty=True)
    for name in _ANSWERS:
        yield from text(name, row, name)
    if row.get("chosen") is not None and row.get("chosen") == row.get("rejected"):
        yield RowMistake("rejected", "same_answers", "equals chosen, so nothing is preferred")


def _completion(row: dict[str, Any]) -> Iterator[RowMistake]:
    yield from text("prompt", row, "prompt", may_be_empty=True)
    yield from text("completion", row, "completion")
