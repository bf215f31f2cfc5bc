"""Rows of a data set: what each mistake is called and where it stands. In milliseconds, no file."""

import json

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
    (chat(USER | {"name": "Ann"}, ANSWER), "messages[0].name", "unknown_field"),
    (chat("hello", ANSWER), "messages[0]", "not_an_object"),
    (chat(USER, ANSWER, tools=[]), "tools", "unknown_field"),
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
    _, errors = check_row(json.dumps(row).encode())
    assert (path, code) in [(error.path, error.code) for error in errors]


LINES = [
    (b"", "not_json"),
    (b" \t\r", "not_json"),
    (b"\xef\xbb\xbf" + json.dumps(CHAT).encode(), "byte_order_mark"),
    (b'{"prompt": "\xff", "completion": "x"}', "not_utf8"),
    (b'{"prompt": "x", "completion": "x"', "not_json"),
    (b'{"prompt": "x", "completion": NaN}', "not_json"),
    (b'{"prompt": "x", "completion": -Infinity}', "not_json"),
    (b'{"prompt": "x", "completion": ' + b"9" * 5000 + b"}", "not_json"),
    (b"[" * 100_000, "not_json"),
    (b'{"prompt": "x", "prompt": "y", "completion": "z"}', "duplicate_key"),
    (b'{"messages": [{"role": "user", "role": "assistant", "content": "z"}]}', "duplicate_key"),
    (b'{"prompt": "x", "completion": "\\ud800"}', "lone_surrogate"),
]


@pytest.mark.parametrize(("line", "code"), LINES, ids=[f"{code} {line[:24]!r}" for line, code in LINES])
def test_a_wrong_line(line, code):
    format, errors = check_row(line)
    assert [error.code for error in errors] == [code]
    assert format in (None, Format.COMPLETION)


def test_all_mistakes_of_a_row_are_said():
    _, errors = check_row(json.dumps(chat(turn("robot", ""), "x", more=1)).encode())
    assert {error.path for error in errors} == {"more", "messages[0].role", "messages[0].content", "messages[1]", "messages"}


def test_a_line_of_windows_is_a_line():
    assert check_row(json.dumps(CHAT).encode() + b"\r") == (Format.CHAT, [])


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text.strip())
turns = st.builds(turn, st.sampled_from(["user", "assistant"]), texts)


@given(st.none() | st.builds(turn, st.just("system"), texts), st.lists(turns, max_size=4), st.lists(turns, max_size=2))
def test_a_right_chat_row(system, before, after):
    row = chat(*([system] if system else []), *before, turn("assistant"), *after)
    assert check_row(json.dumps(row, ensure_ascii=False).encode()) == (Format.CHAT, [])


@given(st.text(st.characters(codec="utf-8")), texts)
def test_a_right_completion_row(prompt, completion):
    row = {"prompt": prompt, "completion": completion}
    assert check_row(json.dumps(row).encode()) == (Format.COMPLETION, [])


@given(st.binary(max_size=64))
def test_no_line_breaks_the_check(line):
    _, errors = check_row(line)
    assert errors
