"""What a user of the `openai` SDK asks models for, each answer but text streams strictly validated by the SDK itself.

Run as a program, as walk_sync.py is, while an executor answers: the texts are `Two` and `Three`, in two pieces.
"""

import asyncio
import os
import sys
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

ASKED: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "How many?"}]}
MORE: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 1, "stop": ["END"], "seed": 5, "temperature": 0.5}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def chat(client: OpenAI) -> None:
    said = client.chat.completions.create(**ASKED, **MORE, max_completion_tokens=9)
    assert [choice.message.content for choice in said.choices] == ["Two", "Three"]
    assert [token.token for token in said.choices[0].logprobs.content] == ["Tw", "o"]
    assert said.choices[0].logprobs.content[0].top_logprobs[0].token == "Tw"
    assert (said.choices[0].finish_reason, said.usage.total_tokens) == ("stop", 9)
    chunks = list(client.chat.completions.create(**ASKED, **MORE, **STREAM))
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    assert ["".join(one.delta.content or "" for one in deltas if one.index == n) for n in range(2)] == ["Two", "Three"]
    assert [one.finish_reason for one in deltas if one.finish_reason] == ["stop", "stop"]
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [9]


def text(client: OpenAI) -> None:
    said = client.completions.create(model="small", prompt=["How many?", "Who?"], logprobs=1, max_tokens=9)
    assert [choice.text for choice in said.choices] == ["Two", "Three"]
    assert said.choices[0].logprobs.tokens == ["Tw", "o"]
    lenient = client.with_options(_extra_kwargs={"_strict_response_validation": False})  # OpenAI's chunks break its own types
    chunks = lenient.completions.create(model="small", prompt="How many?", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Two"


def mistakes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ASKED | {"model": "nothing"})
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, n=17)
    assert caught.value.param == "n"


async def asynchronous(**how: Any) -> None:
    async with AsyncOpenAI(**how) as client:
        said = await client.chat.completions.create(**ASKED)
        assert said.choices[0].message.content == "Two"
        chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True)]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Two"


def main() -> None:
    how: Any = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["KEY"], "max_retries": 0}
    how["_strict_response_validation"] = True
    with OpenAI(**how) as client:
        chat(client)
        text(client)
        mistakes(client)
    asyncio.run(asynchronous(**how))
    sys.stdout.write(openai.__version__ + "\n")


if __name__ == "__main__":
    main()
