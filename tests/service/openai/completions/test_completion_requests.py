"""OpenAI's requests as work for an executor."""

import pytest
from pydantic import ValidationError

from contract.messages.completion_messages import CompletionWork
from service.openai.completions.completion_requests import ChatRequest, TextRequest

CHAT = {"model": "small", "messages": [{"role": "user", "content": "How many?"}]}
TEXT = {"model": "small", "prompt": "One"}


def chat(most: int = 64, **said) -> CompletionWork:
    return ChatRequest.model_validate(CHAT | said).work("cmpl_1", "tenant_1", most)


def text(most: int = 64, **said) -> CompletionWork:
    return TextRequest.model_validate(TEXT | said).work("cmpl_1", "tenant_1", most)


def test_a_temperature_of_0_is_greedy_and_none_is_1():
    assert [work.temperature for work in (chat(temperature=0), text(temperature=0), chat(), text())] == [0, 0, 1, 1]


def test_logprobs_without_alternatives_are_the_tokens_own():
    said = [{}, {"logprobs": False}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}]
    assert [chat(**one).logprobs for one in said] == [None, None, 0, 3]
    assert [text(**one).logprobs for one in ({}, {"logprobs": 0}, {"logprobs": 3})] == [None, 0, 3]


def test_tokens_are_as_many_as_said_and_else_no_more_than_the_service_gives():
    assert (text().max_tokens, text(most=9).max_tokens, text(most=9, max_tokens=5).max_tokens) == (16, 9, 5)
    assert (chat().max_tokens, chat(max_tokens=5).max_tokens, chat(max_completion_tokens=6).max_tokens) == (64, 5, 6)
    assert [work.exact_max_tokens for work in (text(), text(max_tokens=16), chat(), chat(max_tokens=5))] == [0, 1, 0, 1]


@pytest.mark.parametrize("prompt", [[[]], [[1], []], [-1], [[1, -1]], [2**31], [True], [[True]], [1, "a"], [1.0]])
def test_a_prompt_of_what_is_no_token_is_refused(prompt):
    with pytest.raises(ValidationError, match="must be a text, a list of texts, a list of tokens"):
        text(prompt=prompt)


def test_a_prompt_may_be_of_any_token():
    assert text(prompt=[0, 2**31 - 1]).prompts == [[0, 2**31 - 1]]
