"""Checks the messages and tools of a row: turns as OpenAI's chat rows have them. Pure.

A message has a role and a content, a text or a list of text parts, and may have a name. An assistant's may call tools
(`tool_calls`), with or without a content, and have a `weight` of 0 or 1; a tool's says which call it answers (`tool_call_id`).
"""

import json
from collections.abc import Iterator
from typing import Any

from service.files.row_values import RowMistake, UnreadableJson, decoded, has_surrogate, kind, text

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIRST = ("system", "developer")
_COMMON = ("role", "content", "name")
_MORE = {"assistant": ("tool_calls", "weight"), "tool": ("tool_call_id",)}
_MAY_HOLD_NOTHING = ("refusal", "annotations", "audio", "function_call")  # of answers as OpenAI's SDK dumps them
_CALL = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "{...}"}}'
_TOOL = '{"type": "function", "function": {"name": "...", "description": "...", "parameters": {...}}}'
_OLD_CALL = f'is the old form of a call; write "tool_calls": [{_CALL}]'
_OLD_ANSWER = 'is the old form of a tool\'s answer; write {"role": "tool", "tool_call_id": "...", "content": "..."}'
OLD_TOOLS = f'is the old form of tools; write "tools": [{_TOOL}]'
_DEEPEST = 64  # levels: whoever reads the row, at whatever depth of calls, stays below Python's recursion limit
_SURROGATE = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"


def messages(path: str, value: Any, learned: bool = True) -> Iterator[RowMistake]:
    """Check a list of messages. `learned`: require an assistant turn in the loss, since training learns only those."""
    if not isinstance(value, list) or not value:
        yield RowMistake(path, "no_messages", 'must be a list of at least one {"role", "content"}')
        return
    called: set[str] = set()
    for index, one in enumerate(value):
        yield from message(f"{path}[{index}]", index, one, weighted=learned)
        if isinstance(one, dict):
            yield from _answered(f"{path}[{index}].tool_call_id", one, called)
            called |= set(_call_ids(one))
    turns = [one for one in value if isinstance(one, dict) and one.get("role") == "assistant"]
    if learned and not turns:
        yield RowMistake(path, "no_assistant_turn", "has no turn of the assistant, so there is nothing to learn from it")
    elif learned and all(_is_weight(one, 0) for one in turns):
        yield RowMistake(
            path, "no_weighted_turn", "gives each turn of the assistant weight 0, so there is nothing to learn from it"
        )


def message(path: str, index: int, value: Any, weighted: bool) -> Iterator[RowMistake]:
    """Check one message, the `index`-th of its conversation. `weighted`: it may have a weight."""
    if not isinstance(value, dict):
        yield RowMistake(path, "not_an_object", f'holds {kind(value)}; a message is {{"role", "content"}}')
        return
    role = value.get("role")
    if role == "function":
        yield RowMistake(f"{path}.role", "old_form", _OLD_ANSWER)
    elif role not in _ROLES:
        given = f", got {role!r:.40}" if "role" in value else ""
        yield RowMistake(f"{path}.role", "wrong_role", f"must be system, developer, user, assistant or tool{given}")
    elif role in _FIRST and index > 0:
        yield RowMistake(f"{path}.role", "system_not_first", f"is {role}, which may only be the first message")
    yield from _fields(path, value, role, weighted)
    if value.get("name") is not None:
        yield from text(f"{path}.name", value, "name")
    calls = value.get("tool_calls") if role == "assistant" else None
    if calls is not None:
        yield from _calls(f"{path}.tool_calls", calls)
    if role == "tool":
        yield from text(f"{path}.tool_call_id", value, "tool_call_id")
    yield from _content(f"{path}.content", value, role, calls)
    weight = value.get("weight") if role == "assistant" and weighted else None
    if weight is not None and not (_is_weight(value, 0) or _is_weight(value, 1)):
        yield RowMistake(f"{path}.weight", "wrong_weight", "must be 0 (not learned) or 1")


def tools(path: str, value: Any) -> Iterator[RowMistake]:
    """Check the tools that a conversation may call."""
    if value is None:
        return
    if not isinstance(value, list):
        yield RowMistake(path, "not_a_list", f"must be a list of {_TOOL}, got {kind(value)}")
        return
    for index, tool in enumerate(value):
        yield from _tool(f"{path}[{index}]", tool)


def parallel(path: str, value: Any) -> Iterator[RowMistake]:
    """Check `parallel_tool_calls`, which says nothing that a template writes."""
    if value is not None and not isinstance(value, bool):
        yield RowMistake(path, "not_a_bool", f"must be true or false, got {kind(value)}")


def _fields(path: str, value: dict[str, Any], role: object, weighted: bool) -> Iterator[RowMistake]:
    known = (*_COMMON, *(_MORE.get(role, ()) if isinstance(role, str) else ()))
    for name, held in value.items():
        if (name in known and (weighted or name != "weight")) or (name in _MAY_HOLD_NOTHING and held in (None, [])):
            continue
        if name == "function_call":
            yield RowMistake(f"{path}.{name}", "old_form", _OLD_CALL)
        elif name == "weight" and role == "assistant":
            message = "has no meaning in a preference row, which learns its two answers alone; remove it"
            yield RowMistake(f"{path}.{name}", "unknown_field", message)
        elif held is not None or name not in (*_MORE["assistant"], *_MORE["tool"]):
            message = f"is not part of such a message, which has {', '.join(known)}; remove it"
            yield RowMistake(f"{path}.{name}", "unknown_field", message)


def _content(path: str, value: dict[str, Any], role: object, calls: Any) -> Iterator[RowMistake]:
    content = value.get("content")
    if calls and (content is None or content == ""):
        return
    if not isinstance(content, list):
        yield from text(path, value, "content", may_be_empty=role == "tool" or bool(calls))
        return
    sound = True
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            sound = False
            yield RowMistake(
                f"{path}[{index}]", "not_a_text", 'must be {"type": "text", "text": "..."}: only text is trained on'
            )
        else:
            mistakes = list(text(f"{path}[{index}].text", part, "text", may_be_empty=True))
            sound = sound and not mistakes
            yield from mistakes
    if sound and role != "tool" and not calls and not "".join(part["text"] for part in content).strip():
        yield RowMistake(path, "empty", "holds no text")


def _calls(path: str, calls: Any) -> Iterator[RowMistake]:
    if not isinstance(calls, list) or not calls:
        yield RowMistake(path, "not_a_list", f"must be a list of at least one {_CALL}")
        return
    for index, call in enumerate(calls):
        yield from _call(f"{path}[{index}]", call)


def _call(path: str, call: Any) -> Iterator[RowMistake]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function":
        yield RowMistake(path, "not_a_call", f"must be {_CALL}")
        return
    yield from _others(path, call, ("id", "type", "function"))
    yield from text(f"{path}.id", call, "id")
    yield from _others(f"{path}.function", function, ("name", "arguments"))
    yield from text(f"{path}.function.name", function, "name")
    held = function.get("arguments")
    if not isinstance(held, str):
        found = "nothing" if held is None else kind(held)
        message = f"must be a JSON object in a text, as OpenAI writes it, got {found}"
        yield RowMistake(f"{path}.function.arguments", "arguments_not_json", message)
        return
    try:
        arguments = decoded(held)
    except UnreadableJson as error:
        yield RowMistake(f"{path}.function.arguments", "arguments_not_json", f"{error}; it is to be a JSON object")
        return
    if not isinstance(arguments, dict):
        message = f"holds {kind(arguments)}; it is to be a JSON object"
        yield RowMistake(f"{path}.function.arguments", "arguments_not_json", message)
    else:
        yield from _nested(f"{path}.function.arguments", arguments)


def _tool(path: str, tool: Any) -> Iterator[RowMistake]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        yield RowMistake(path, "not_a_tool", f"must be {_TOOL}")
        return
    yield from _others(path, tool, ("type", "function"))
    yield from _others(f"{path}.function", function, ("name", "description", "parameters", "strict"))
    yield from text(f"{path}.function.name", function, "name")
    if function.get("description") is not None:
        yield from text(f"{path}.function.description", function, "description", may_be_empty=True)
    if function.get("strict") is not None and not isinstance(function["strict"], bool):
        yield RowMistake(f"{path}.function.strict", "not_a_bool", f"must be true or false, got {kind(function['strict'])}")
    parameters = function.get("parameters")
    if parameters is None:
        return
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
        yield RowMistake(f"{path}.function.parameters", "not_an_object", "must be a JSON Schema of an object")
    else:
        yield from _nested(f"{path}.function.parameters", parameters)


def _others(path: str, value: dict[str, Any], known: tuple[str, ...]) -> Iterator[RowMistake]:
    for name in value:
        if name not in known:
            yield RowMistake(f"{path}.{name}", "unknown_field", f"is unknown here; known are {', '.join(known)}; remove it")


def _nested(path: str, value: dict[str, Any]) -> Iterator[RowMistake]:
    if _depth(value) > _DEEPEST:
        yield RowMistake(path, "too_deep", f"is nested more than {_DEEPEST} levels deep")
    elif has_surrogate(json.dumps(value, ensure_ascii=False)):
        yield RowMistake(path, "lone_surrogate", _SURROGATE)


def _depth(value: object) -> int:
    """Levels of nesting, counted no further than one beyond the most allowed."""
    depth, level = 0, [value]
    while depth <= _DEEPEST and (nested := [one for one in level if isinstance(one, dict | list)]):
        depth += 1
        level = [each for one in nested for each in (one.values() if isinstance(one, dict) else one)]
    return depth


def _answered(path: str, value: dict[str, Any], called: set[str]) -> Iterator[RowMistake]:
    """A tool's message answers a call that stands before it."""
    answered = value.get("tool_call_id")
    if value.get("role") == "tool" and isinstance(answered, str) and answered.strip() and answered not in called:
        yield RowMistake(path, "unknown_call", "names no call of a message before it; take the id of a call in tool_calls")


def _call_ids(value: dict[str, Any]) -> Iterator[str]:
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            yield call["id"]


def _is_weight(value: dict[str, Any], weight: int) -> bool:
    held = value.get("weight")
    return isinstance(held, int) and not isinstance(held, bool) and held == weight
