"""Learned turns are found with few renderings of their conversation: most of the time that rows take goes there."""

import pytest

from contract.rows.conversation import Conversation
from contract.rows.turn_spans import render
from service.files.chat_template import Template

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("turns", [1, 2, 10])
def test_turns_that_stand_behind_their_prompts_take_two_renderings_each(turns: int) -> None:
    template, written = Template(CHATML, {}), []

    def write(conversation: Conversation, prompt: bool) -> str:
        written.append(prompt)
        return template.write(conversation.messages, prompt, None)

    said = [m for n in range(turns) for m in ({"role": "user", "content": "q"}, {"role": "assistant", "content": f"as {n}"})]
    made = render(Conversation(said, None, (True,) * len(said), ()), write)
    assert [made.text[begin:end] for begin, end in made.learned] == [f"as {n}<|im_end|>\n" for n in range(turns)]
    assert len(written) == 2 * turns + 1
