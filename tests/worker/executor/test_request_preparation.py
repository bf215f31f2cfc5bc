"""Prompts of requests: a conversation is written as a row of it is in training."""

import pytest
from transformers import AutoTokenizer

from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.executor.completion_work import work
from worker.data.row_reader import reader_of
from worker.executor.completions.request_preparation import chat_tokens

NAMED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ ' ' + m.name if m.name is defined else '' }}: {{ m['content'] }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)


@pytest.mark.parametrize("name", [{"name": "Ada"}, {"name": None}, {}])
def test_who_speaks_is_written_as_in_training(name) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    tokenizer.chat_template = NAMED
    reader, asked = reader_of(tokenizer), [{"role": "user", "content": "2 + 3?", **name}]
    ((row,),) = reader.read([{"messages": [*asked, {"role": "assistant", "content": "5"}]}])
    prompt = tokenizer.decode(chat_tokens(reader, work("q", messages=asked)))
    assert tokenizer.decode(row.ids).startswith(prompt)
    assert ("Ada" in prompt) == bool(name.get("name"))
