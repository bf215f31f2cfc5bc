"""Learned turns are found with few renderings of their conversation: most of the time that rows take goes there."""

import pytest

from contract.rows.conversation import Conversation
from contract.rows.tokenizer import TemplateError
from contract.rows.turn_spans import render
from service.files.chat_template import Template

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Writer:
    """Renders conversations, and keeps the number of messages of each."""

    def __init__(self, template: str) -> None:
        self._template, self.messages = Template(template, {}), list[int]()

    def write(self, conversation: Conversation, prompt: bool) -> str:
        self.messages.append(len(conversation.messages))
        return self._template.write(conversation.messages, prompt, None)


def talk(turns: int) -> Conversation:
    said = [m for n in range(turns) for m in ({"role": "user", "content": "q"}, {"role": "assistant", "content": f"as {n}"})]
    return Conversation(said, None, (True,) * len(said), ())


@pytest.mark.parametrize("turns", [1, 2, 10])
def test_turns_that_stand_behind_their_prompts_take_two_renderings_each(turns: int) -> None:
    writer = Writer(CHATML)
    made = render(talk(turns), writer.write)
    assert [made.text[begin:end] for begin, end in made.learned] == [f"as {n}<|im_end|>\n" for n in range(turns)]
    assert len(writer.messages) == 2 * turns + 1


@pytest.mark.parametrize("template", [CHATML, CHATML.replace("m.content", "m.content | trim ~ (' ' if loop.last else '')")])
def test_turns_behind_the_cut_are_not_looked_for(template: str) -> None:
    every = render(talk(200), Writer(template).write)
    for cut in (0, 1, every.learned[70][0], every.learned[70][0] + 1, every.learned[150][1], len(every.text)):
        made = render(talk(200), Writer(template).write, cut=lambda _, cut=cut: cut)
        assert made.text == every.text
        assert made.learned == tuple(span for span in every.learned if span[0] < cut)
    few, many = Writer(template), Writer(template)
    render(talk(200), few.write, cut=lambda _: 500)
    render(talk(400), many.write, cut=lambda _: 500)
    assert len(few.messages) == len(many.messages)
    assert sum(many.messages) <= 2 * sum(few.messages), "it grows with the row, not with its square"


def test_a_turn_of_calls_that_is_written_otherwise_where_it_is_last_is_refused() -> None:
    """Its end is told by the conversation that ends with it, which then tells nothing of this one."""
    template = (
        "{% for m in messages %}{% set last = loop.last %}<{{ m.role }}>{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson if last else c.function.arguments | tojson | upper }}{% endfor %}"
        "{{ m.content }};\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]
    with pytest.raises(TemplateError, match=r"messages\[1\]\.tool_calls: where this turn begins or ends cannot be told"):
        render(Conversation(said, None, (True,) * 3, ()), Writer(template).write)
    alike = render(Conversation(said, None, (True,) * 3, ()), Writer(template.replace(" | upper", "")).write)
    assert [alike.text[begin:end] for begin, end in alike.learned] == ['{"a": "b"};\n']
