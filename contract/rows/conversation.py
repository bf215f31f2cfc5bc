"""A row's conversation in the form that chat templates take: OpenAI's form becomes the one that transformers documents.

- A content in parts is one text: the parts one after another, as chat completions read them.
- `tool_calls[].function.arguments`, JSON in a text at OpenAI, is a mapping; a template that takes none gets the row's text.
- `developer` is `system` where the template's source never says developer.
- Members that are null are left out, as transformers leaves them out, and so are those that no template knows, as `weight`.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from contract.rows.tokenizer import Messages, Tokenizer, Tools

_TOLD = ("role", "content", "name", "tool_calls", "tool_call_id")


@dataclass(frozen=True)
class Conversation:
    """messages, tools: what the template is given. learned: of each message, whether its weight leaves it in the loss. checked:
    the messages of whose content no template may leave anything out. answer: of a preference, the field of the row that holds
    the last message; the others, and the tools, are its input's."""

    messages: Messages
    tools: Tools | None
    learned: tuple[bool, ...]
    checked: tuple[int, ...]
    text_arguments: bool = False
    answer: str | None = None

    def path(self, place: int) -> str:
        """Where message `place` stands in its row."""
        if self.answer is None:
            return f"messages[{place}]"
        return f"{self.answer}[0]" if place == len(self.learned) - 1 else f"input.messages[{place}]"

    @property
    def tools_path(self) -> str:
        return "tools" if self.answer is None else "input.tools"

    @property
    def may_be_ignored(self) -> bool:
        """Whether it holds what many templates do not write."""
        return self.tools is not None or bool(self.checked) or any("tool_calls" in message for message in self.messages)

    def called_with(self, place: int, arguments: list[dict[str, Any]]) -> "Conversation":
        """Message `place` with these arguments, one for each of its calls."""
        calls = [
            call | {"function": call["function"] | {"arguments": self._form(one)}}
            for call, one in zip(self.messages[place]["tool_calls"], arguments, strict=True)
        ]
        return self.with_message(place, self.messages[place] | {"tool_calls": calls})

    def with_message(self, place: int, message: dict[str, Any]) -> "Conversation":
        return replace(self, messages=[*self.messages[:place], message, *self.messages[place + 1 :]])

    def before(self, place: int) -> "Conversation":
        """The messages before this one."""
        return replace(self, messages=self.messages[:place])

    def _form(self, arguments: dict[str, Any]) -> object:
        return json.dumps(arguments, ensure_ascii=False) if self.text_arguments else arguments


def conversation_of(
    messages: Messages, tools: Tools | None, tokenizer: Tokenizer, text_arguments: bool = False, answer: str | None = None
) -> Conversation:
    """The row's messages and tools for this tokenizer's template; `text_arguments`: it takes arguments as JSON in a text.
    Raises TemplateError."""
    known = tools or None
    developer = any(message["role"] == "developer" for message in messages)
    plain = developer and not tokenizer.template_says("developer", known)
    return Conversation(
        messages=[_message(message, text_arguments, plain) for message in messages],
        tools=known,
        learned=tuple(message.get("weight") != 0 for message in messages),
        checked=tuple(place for place, message in enumerate(messages) if _is_checked(message)),
        text_arguments=text_arguments,
        answer=answer,
    )


def _is_checked(message: dict[str, Any]) -> bool:
    beyond = message["role"] in ("tool", "developer") or bool(message.get("tool_calls"))
    return beyond and bool(_text(message.get("content") or "").strip())


def _message(message: dict[str, Any], text_arguments: bool, no_developer: bool) -> dict[str, Any]:
    made = {name: value for name, value in message.items() if value is not None and name in _TOLD}
    if not made.get("tool_calls"):
        made.pop("tool_calls", None)
    if "content" in made:
        made["content"] = _text(made["content"])
    if no_developer and made["role"] == "developer":
        made["role"] = "system"
    if "tool_calls" in made and not text_arguments:
        made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": json.loads(function["arguments"])}}


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
