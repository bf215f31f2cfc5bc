"""Turns of long conversations are found in windows: the same spans as in the whole conversation, in far fewer messages."""

import random
from typing import Any

import pytest

from contract.rows import turn_spans
from contract.rows.conversation import Conversation
from contract.rows.tokenizer import TemplateError
from contract.rows.turn_spans import render
from tests.contract.test_turn_spans import Writer, talk
from tests.worker.data.chat_templates import CHATML, FORGETFUL, INST, OPENING, THINKING, THOUGHTLESS
from tests.worker.data.tool_templates import FAMILIES

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEMPLATES = {
    **{"chatml": CHATML, "forgetful": FORGETFUL, "thinking": THINKING, "opening": OPENING},
    **{"thoughtless": THOUGHTLESS, "inst": INST},
    **{name: family.template for name, family in FAMILIES.items()},
    "numbers turns": PLAIN.replace("<{{ m.role }}>", "<{{ m.role }} {{ loop.index }}>").replace(
        "<assistant>", "<assistant {{ messages | length + 1 }}>"
    ),
    "counts at the end": PLAIN.replace(";", "{{ loop.length % 7 if loop.last }};"),
    "other roles later": PLAIN.replace(
        "<{{ m.role }}>", "<{{ 'x' if loop.index > 40 and m.role == 'assistant' else m.role }}>"
    ),
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"properties": {"a": {}}}}}]


@pytest.fixture
def small_windows(monkeypatch) -> None:
    """So that short conversations have many, of which a test looks at all in little time."""
    monkeypatch.setattr(turn_spans, "_FEW", 4)
    monkeypatch.setattr(turn_spans, "TURNS", 5)


def call(name: str, draw: random.Random) -> list[dict[str, Any]]:
    arguments: Any = '{"a": "b"}' if name == "harmonic" else {"a": draw.choice(["b", 1])}
    asked = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    content = "" if name == "bracketed" else draw.choice(["", "let me see"])
    turn = {"role": "assistant", "content": content, "tool_calls": [asked]}
    return [turn, {"role": "tool", "content": draw.choice(["r", "12"]), "tool_call_id": "1"}]


def conversation(name: str, draw: random.Random, messages: int) -> Conversation:
    """Of questions and answers, and of calls in a row where the template takes them; weights of 0 here and there."""
    answers = (
        ["yes", "no <b>", "<think>\nhm\n</think>\n\nyes", "été", " spaced ", "Amber"] if draw.random() < 0.3 else ["yes", "no"]
    )
    said = [{"role": "system", "content": "Be brief."}] if name != "harmonic" and draw.random() < 0.5 else []
    while len(said) < messages:
        said.append({"role": "user", "content": draw.choice(["q", "why?", "and then"])})
        for _ in range(draw.choice([0, 1, 3, 20]) if name in FAMILIES else 0):
            said += call(name, draw)
        said.append({"role": "assistant", "content": draw.choice(answers)})
    said += [{"role": "user", "content": "last"}] if draw.random() < 0.3 else []
    tools = TOOLS if name in FAMILIES and draw.random() < 0.7 else None
    return Conversation(said, tools, tuple(draw.random() > 0.1 for _ in said), (), name == "harmonic")


def outcome(of: Conversation, template: str, cut: int) -> object:
    try:
        return render(of, Writer(template).write, cut=lambda text: min(cut, len(text)))
    except TemplateError as error:
        return str(error)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", TEMPLATES)
def test_windows_find_what_the_whole_conversation_tells(small_windows, monkeypatch, name, seed):
    draw = random.Random(seed)
    made = conversation(name, draw, 90)
    for cut in (10**9, draw.choice([60, 500, 1000])):
        found = outcome(made, TEMPLATES[name], cut)
        with monkeypatch.context() as one:
            one.setattr(turn_spans, "_MISSES", 0)  # no windows
            assert found == outcome(made, TEMPLATES[name], cut)


LINE = PLAIN.replace(">{{ m.content", ">\n{{ m.content")


@pytest.mark.parametrize(
    "template",
    [
        # no window of it has another text, yet the prompt, which ends in a line's end, has none from there on
        *(LINE.replace("<assistant>", f"<assistant>{{{{ '\n' if messages | length < {far} }}}}") for far in (150, 390)),
        LINE.replace("\n{{ m.content", "\n{{ 'odd ' if loop.index > 200 and loop.index < 210 }}{{ m.content"),
    ],
)
def test_what_depends_on_the_conversations_length_is_found_in_the_whole(monkeypatch, template):
    found = outcome(talk(200), template, 10**9)
    monkeypatch.setattr(turn_spans, "_MISSES", 0)
    assert found == outcome(talk(200), template, 10**9)


@pytest.mark.parametrize("template", [CHATML, FORGETFUL, INST])
def test_twice_the_turns_take_twice_the_messages(template):
    taken = []
    for turns in (200, 400):
        writer = Writer(template)
        render(talk(turns), writer.write)
        taken.append(sum(writer.messages))
    assert taken[1] < 2.3 * taken[0]
