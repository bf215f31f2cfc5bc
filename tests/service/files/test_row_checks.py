"""Rows of a data set: what each mistake is called and where it stands. In milliseconds, no file."""

import json
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.files.row_checks import Format, check_row
from tests.service.api import CHAT, PAIR


def turn(role: object, content: object = "x") -> dict[str, object]:
    return {"role": role, "content": content}


USER, ANSWER = turn("user"), turn("assistant")


def chat(*turns: object, **more: object) -> dict[str, object]:
    return {"messages": list(turns), **more}


def tool(**changes: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters} | changes}


def calling(id: object = "c1", arguments: object = '{"a": 1}') -> dict[str, object]:
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


CALL = calling()


def nested(levels: int) -> dict[str, object]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


def preference(asked: list[object], preferred: object, **more: object) -> dict[str, object]:
    return {
        "input": {"messages": asked, **more},
        "preferred_output": [preferred],
        "non_preferred_output": [turn("assistant", "other")],
    }


BAD = [
    (chat(), "messages", "no_messages"),
    ({"messages": "hello"}, "messages", "no_messages"),
    (chat(USER), "messages", "no_assistant_turn"),
    (chat(USER, turn("robot")), "messages[1].role", "wrong_role"),
    (chat({"content": "x"}, ANSWER), "messages[0].role", "wrong_role"),
    (chat(turn(["user"]), ANSWER), "messages[0].role", "wrong_role"),
    (chat(USER, turn("system"), ANSWER), "messages[1].role", "system_not_first"),
    (chat(USER, turn("assistant", "")), "messages[1].content", "empty"),
    (chat(turn("user", " \n"), ANSWER), "messages[0].content", "empty"),
    (chat(turn("user", None), ANSWER), "messages[0].content", "not_a_text"),
    (chat({"role": "user"}, ANSWER), "messages[0].content", "missing"),
    (chat(USER | {"mood": "good"}, ANSWER), "messages[0].mood", "unknown_field"),
    (chat(USER | {"name": 4}, ANSWER), "messages[0].name", "not_a_text"),
    (chat("hello", ANSWER), "messages[0]", "not_an_object"),
    (chat(USER, ANSWER, answers=[]), "answers", "unknown_field"),
    (chat(USER, ANSWER, tools={}), "tools", "not_a_list"),
    (chat(USER, ANSWER, tools=[{"name": "f"}]), "tools[0]", "not_a_tool"),
    (chat(USER, ANSWER, tools=[tool(name="")]), "tools[0].function.name", "empty"),
    (chat(USER, ANSWER, tools=[tool(parameters=[])]), "tools[0].function.parameters", "not_an_object"),
    (
        chat(USER, ANSWER, tools=[tool(parameters={"properties": {"\ud800": {}}})]),
        "tools[0].function.parameters",
        "lone_surrogate",
    ),
    (chat(USER, ANSWER, tools=[tool(parametres={})]), "tools[0].function.parametres", "unknown_field"),
    (chat(USER, ANSWER, tools=[tool(strict="\ud800")]), "tools[0].function.strict", "not_a_bool"),
    (chat(USER, ANSWER, parallel_tool_calls=1), "parallel_tool_calls", "not_a_bool"),
    (chat(USER, ANSWER, functions=[{"name": "f"}]), "functions", "old_form"),
    (chat(USER, ANSWER | {"function_call": {"name": "f", "arguments": "{}"}}), "messages[1].function_call", "old_form"),
    (chat(USER, CALL, {"role": "function", "name": "f", "content": "x"}), "messages[2].role", "old_form"),
    (chat(USER, ANSWER | {"tool_calls": []}), "messages[1].tool_calls", "not_a_list"),
    (chat(USER, ANSWER | {"tool_calls": ["f"]}), "messages[1].tool_calls[0]", "not_a_call"),
    (chat(USER, calling(id=None)), "messages[1].tool_calls[0].id", "not_a_text"),
    (chat(USER, calling(arguments={})), "messages[1].tool_calls[0].function.arguments", "arguments_not_json"),
    (chat(USER, calling(arguments="{'a': 1}")), "messages[1].tool_calls[0].function.arguments", "arguments_not_json"),
    (chat(USER, calling(arguments="[]")), "messages[1].tool_calls[0].function.arguments", "arguments_not_json"),
    (chat(USER, calling(arguments='{"a": 1, "a": 2}')), "messages[1].tool_calls[0].function.arguments", "arguments_not_json"),
    (chat(USER, calling(arguments='{"a": [1e999]}')), "messages[1].tool_calls[0].function.arguments", "arguments_not_json"),
    (chat(USER, calling(arguments='{"a": "\\ud800"}')), "messages[1].tool_calls[0].function.arguments", "lone_surrogate"),
    (chat(USER, CALL | {"role": "user"}), "messages[1].tool_calls", "unknown_field"),
    (chat(USER, ANSWER | {"content": None}), "messages[1].content", "not_a_text"),
    (chat(USER, CALL, turn("tool"), ANSWER), "messages[2].tool_call_id", "missing"),
    (chat(USER, CALL, turn("tool") | {"tool_call_id": "c2"}, ANSWER), "messages[2].tool_call_id", "unknown_call"),
    (chat(turn("tool") | {"tool_call_id": "c1"}, CALL), "messages[0].tool_call_id", "unknown_call"),
    (chat(USER, turn("developer"), ANSWER), "messages[1].role", "system_not_first"),
    (chat(turn("user", [{"type": "image_url"}]), ANSWER), "messages[0].content[0]", "not_a_text"),
    (chat(turn("user", [{"type": "text", "text": 1}]), ANSWER), "messages[0].content[0].text", "not_a_text"),
    (chat(turn("user", [{"type": "text", "text": " "}]), ANSWER), "messages[0].content", "empty"),
    (chat(turn("user", []), ANSWER), "messages[0].content", "empty"),
    (chat(USER, ANSWER | {"weight": 2}, ANSWER), "messages[1].weight", "wrong_weight"),
    (chat(USER, ANSWER | {"weight": True}, ANSWER), "messages[1].weight", "wrong_weight"),
    (chat(USER, ANSWER | {"weight": 0.5}, ANSWER), "messages[1].weight", "wrong_weight"),
    (chat(USER | {"weight": 1}, ANSWER), "messages[0].weight", "unknown_field"),
    (chat(USER, ANSWER | {"weight": 0}, ANSWER | {"weight": 0}), "messages", "no_weighted_turn"),
    (preference([USER], ANSWER | {"weight": 1}), "preferred_output[0].weight", "unknown_field"),
    (preference([USER], turn("tool") | {"tool_call_id": "c1"}), "preferred_output[0].role", "wrong_role"),
    (preference([USER], ANSWER, functions=[]), "input.functions", "old_form"),
    (preference([USER], ANSWER, tools=[1]), "input.tools[0]", "not_a_tool"),
    (PAIR | {"messages": [ANSWER]}, "prompt", "unknown_field"),
    ({"prompt": "x"}, "completion", "missing"),
    ({"completion": "x"}, "prompt", "missing"),
    (PAIR | {"completion": " "}, "completion", "empty"),
    (PAIR | {"completion": 4}, "completion", "not_a_text"),
    (PAIR | {"id": 7}, "id", "unknown_field"),
    ({"words": "x"}, None, "format_unknown"),
    ([CHAT], None, "not_an_object"),
    ("x", None, "not_an_object"),
    (None, None, "not_an_object"),
]


@pytest.mark.parametrize(("row", "path", "code"), BAD, ids=[f"{code} at {path}" for _, path, code in BAD])
def test_a_wrong_row(row, path, code):
    _, errors, *_ = check_row(json.dumps(row).encode())
    assert (path, code) in [(error.path, error.code) for error in errors]


ELSEWHERE = [
    ({"conversations": [{"from": "human", "value": "x"}]}, "ShareGPT"),
    (PAIR | {"label": False}, "keep the rows where it is true"),
    ({"prompt": [USER], "completion": [ANSWER]}, "those of prompt, then those of completion"),
    ({"prompt": "x", "chosen": [USER, ANSWER], "rejected": [USER, ANSWER], "messages": [USER, ANSWER]}, '"preferred_output"'),
]


@pytest.mark.parametrize(("row", "way_out"), ELSEWHERE, ids=[way_out for _, way_out in ELSEWHERE])
def test_a_row_of_a_form_of_elsewhere_is_one_mistake_and_says_how_to_write_it(row, way_out):
    _, errors, *_ = check_row(json.dumps(row).encode())
    assert [(error.path, error.code) for error in errors] == [(None, "format_unknown")]
    assert way_out in errors[0].message


LINES = [
    (b"", "not_json"),
    (b" \t\r", "not_json"),
    (b"\xef\xbb\xbf" + json.dumps(CHAT).encode(), "byte_order_mark"),
    (b'{"prompt": "\xff", "completion": "x"}', "not_utf8"),
    (b'{"prompt": "x", "completion": "x"', "not_json"),
    (b'{"prompt": "x", "completion": NaN}', "not_json"),
    (b'{"prompt": "x", "completion": -Infinity}', "not_json"),
    (b'{"messages": [], "tools": [{"maximum": -1e999}]}', "not_json"),
    (b'{"prompt": "x", "completion": ' + b"9" * 5000 + b"}", "not_json"),
    (b"[" * 100_000, "not_json"),
    (b'{"prompt": "x", "prompt": "y", "completion": "z"}', "duplicate_key"),
    (b'{"messages": [{"role": "user", "role": "assistant", "content": "z"}]}', "duplicate_key"),
    (b'{"prompt": "x", "completion": "\\ud800"}', "lone_surrogate"),
]


@pytest.mark.parametrize(("line", "code"), LINES, ids=[f"{code} {line[:24]!r}" for line, code in LINES])
def test_a_wrong_line(line, code):
    format, errors, *_ = check_row(line)
    assert [error.code for error in errors] == [code]
    assert format in (None, Format.COMPLETION)


def test_all_mistakes_of_a_row_are_said():
    _, errors, *_ = check_row(json.dumps(chat(turn("robot", ""), "x", more=1)).encode())
    assert {error.path for error in errors} == {"more", "messages[0].role", "messages[0].content", "messages[1]", "messages"}


def test_a_line_of_windows_is_a_line():
    assert check_row(json.dumps(CHAT).encode() + b"\r")[:2] == (Format.CHAT, [])


EMPTY = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None, "name": None}
ANSWERED = turn("tool", "") | {"tool_call_id": "c1"}
GOOD = [
    chat(turn("developer"), USER, ANSWER),
    chat(USER | {"name": "Ann"}, ANSWER | {"weight": 0}, USER, ANSWER | {"weight": 1}),
    chat(USER, CALL, ANSWERED, ANSWER, tools=[tool()], parallel_tool_calls=False),
    chat(USER, CALL | {"content": "I look"}, ANSWERED, ANSWER | {"weight": None}, tools=None, parallel_tool_calls=None),
    chat(turn("user", [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]), CALL | {"content": ""}),
    chat(USER, ANSWER | EMPTY, tools=[]),
    chat(USER, ANSWER, tools=[{"type": "function", "function": {"name": "f", "strict": True}}]),
    preference([turn("developer"), USER, CALL, ANSWERED], ANSWER, tools=[tool()], parallel_tool_calls=True),
]


@pytest.mark.parametrize("row", GOOD)
def test_a_row_as_openais_users_have_it(row):
    assert check_row(json.dumps(row).encode())[:2] == (Format.PREFERENCE if "input" in row else Format.CHAT, [])


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text.strip())
turns = st.builds(turn, st.sampled_from(["user", "assistant"]), texts)


@given(st.none() | st.builds(turn, st.just("system"), texts), st.lists(turns, max_size=4), st.lists(turns, max_size=2))
def test_a_right_chat_row(system, before, after):
    row = chat(*([system] if system else []), *before, turn("assistant"), *after)
    assert check_row(json.dumps(row, ensure_ascii=False).encode())[:2] == (Format.CHAT, [])


@given(st.text(st.characters(codec="utf-8")), texts)
def test_a_right_completion_row(prompt, completion):
    row = {"prompt": prompt, "completion": completion}
    assert check_row(json.dumps(row).encode())[:2] == (Format.COMPLETION, [])


@given(st.binary(max_size=64))
def test_no_line_breaks_the_check(line):
    _, errors, *_ = check_row(line)
    assert errors


@pytest.mark.parametrize(("levels", "mistakes"), [(64, 0), (65, 1), (900, 1)])
def test_what_tools_take_and_are_given_is_nested_only_so_deep(levels: int, mistakes: int) -> None:
    """A reader at another depth of calls would fail on what the check could just read."""
    for row in (
        chat(USER, ANSWER, tools=[tool(parameters=nested(levels))]),
        chat(USER, calling(arguments=json.dumps(nested(levels)))),
    ):
        _, errors, *_ = check_row(json.dumps(row).encode())
        assert [error.code for error in errors] == ["too_deep"] * mistakes


@pytest.mark.parametrize("prompt", ["x" * 900, "\u00e9" * 450, ""])
@pytest.mark.parametrize("ascii", [False, True])
def test_the_prompt_of_a_preference_is_what_its_answers_leave_of_the_line(prompt: str, ascii: bool) -> None:
    answers = {"chosen": "y" * 700 + "\u00e9", "rejected": "z\n" * 50}
    plain = json.dumps({"prompt": prompt, **answers}, ensure_ascii=ascii).encode()
    turns = {
        "input": {"messages": [{"role": "user", "content": prompt or "?"}]},
        "preferred_output": [{"role": "assistant", "content": answers["chosen"]}],
        "non_preferred_output": [{"role": "assistant", "content": answers["rejected"]}],
    }
    there = len(json.dumps(prompt, ensure_ascii=ascii).encode())
    for line in (plain, json.dumps(turns, ensure_ascii=ascii).encode()):
        checked = check_row(line)
        assert (checked.format, checked.mistakes) == (Format.PREFERENCE, [])
        assert there <= checked.prompt_bytes <= there + 130, "and the names of the fields"


def test_only_preferences_have_prompts_that_are_read_twice() -> None:
    for row in ({"prompt": "x", "completion": "y"}, {"text": "x"}, CHAT, {"prompt": "x" * 99, "chosen": "y", "rejected": "y"}):
        assert check_row(json.dumps(row).encode()).prompt_bytes == 0


def test_a_key_that_comes_twice_is_found_in_one_pass_and_named_shortly() -> None:
    def seconds(keys: int) -> float:
        began = thread_time()
        held = ", ".join(f'"k{key}": 1' for key in range(keys))
        (mistake,) = check_row(f'{{{held}, "long{"x" * 1000}": 1, "long{"x" * 1000}": 2}}'.encode()).mistakes
        assert mistake.code == "duplicate_key"
        assert "'longxx" in mistake.message
        assert len(mistake.message) < 200
        return thread_time() - began

    assert seconds(16_000) < 60 * min(seconds(1_000) for _ in range(5)), "16 times the keys, 256 times the pairs"
