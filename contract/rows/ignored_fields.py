"""Finds what a row says and its base's template would leave out: no field that is to be learned is dropped in silence.

The conversation is rendered once with a mark in place of each such field, and each mark looked for.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from contract.rows.conversation import Conversation
from contract.rows.tokenizer import TemplateError, Tools

_MARK = r"Amber\d+Tulip"
_PYTHONIC = re.compile(rf"{{'{_MARK}': '{_MARK}'}}")  # marked arguments as Python writes a mapping


class IgnoredFields:
    """A conversation with a mark in place of each field that the template must write."""

    def __init__(self, conversation: Conversation) -> None:
        self._marks: dict[str, str] = {}  # by field
        made = conversation
        for place in conversation.checked:
            made = made.with_message(
                place, made.messages[place] | {"content": self._mark(f"{conversation.path(place)}.content")}
            )
        for place, message in enumerate(conversation.messages):
            if "tool_calls" in message:
                made = self._marked_calls(made, place)
        self.marked = replace(made, tools=self._marked_tools(conversation))

    def takes_arguments(self, text: str) -> bool:
        """Whether `text`, `marked` as the template renders it, holds arguments in other than Python's notation."""
        return self.marked.text_arguments or not _PYTHONIC.search(text)

    def check(self, text: str) -> None:
        """`text`: `marked` as the template renders it. Raises TemplateError naming the first field that it lacks."""
        written = set(re.findall(_MARK, text))  # in one pass: a row may have thousands of marks
        for field, mark in self._marks.items():
            if mark not in written:
                raise TemplateError.ignored(field)

    def _mark(self, field: str) -> str:
        self._marks[field] = mark = f"Amber{len(self._marks)}Tulip"
        return mark

    def _marked_calls(self, made: Conversation, place: int) -> Conversation:
        message = made.messages[place]
        calls, arguments = [], []
        for index, call in enumerate(message["tool_calls"]):
            path = f"{made.path(place)}.tool_calls[{index}].function"
            calls.append(call | {"function": call["function"] | {"name": self._mark(f"{path}.name")}})
            mark = self._mark(f"{path}.arguments")
            arguments.append({mark: mark})
        return made.with_message(place, message | {"tool_calls": calls}).called_with(place, arguments)

    def _marked_tools(self, conversation: Conversation) -> Tools | None:
        if conversation.tools is None:
            return None
        return [
            tool | {"function": self._marked_function(f"{conversation.tools_path}[{index}].function", tool["function"])}
            for index, tool in enumerate(conversation.tools)
        ]

    def _marked_function(self, path: str, function: dict[str, Any]) -> dict[str, Any]:
        made = function | {"name": self._mark(f"{path}.name")}
        if function.get("description"):
            made["description"] = self._mark(f"{path}.description")
        parameters = function.get("parameters")
        if parameters and parameters.get("properties"):
            known = {self._mark(f"{path}.parameters"): {"type": "string"}}
            made["parameters"] = parameters | {"properties": known}
        return made


def checked_conversation(make: Callable[[bool], Conversation], write: Callable[[Conversation], str]) -> Conversation:
    """The conversation with arguments in the form that the template takes. `make(text_arguments)` gives it, `write` renders it.
    Raises TemplateError, also naming a field that the template does not write.

    A mapping comes first. The row's own text is for templates that join arguments to a text, and so fail on a mapping or write
    it in Python's notation.
    """
    conversation = make(False)
    if not conversation.may_be_ignored:
        return conversation
    fields = IgnoredFields(conversation)
    try:
        text = write(fields.marked)
    except TemplateError:
        if not any("tool_calls" in message for message in conversation.messages):
            raise
        return _with_text_arguments(make, write)
    if not fields.takes_arguments(text):
        return _with_text_arguments(make, write)
    fields.check(text)
    return conversation


def _with_text_arguments(make: Callable[[bool], Conversation], write: Callable[[Conversation], str]) -> Conversation:
    conversation = make(True)
    fields = IgnoredFields(conversation)
    fields.check(write(fields.marked))
    return conversation
