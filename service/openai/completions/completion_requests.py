"""Translates OpenAI's requests for completions into work for an executor. Pure. Knows no rows and no answers.

A field that OpenAI has and Motet lacks is accepted at the value that asks for nothing, and refused by name at any other.
"""

import re
import secrets
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator

from contract.messages.completion_messages import MOST_CHOICES, MOST_TOP_LOGPROBS, ChatTurn, CompletionWork
from contract.strict import NO_BOOL, STORABLE, Strict
from service.openai.openai_names import ModelName

_SEEDS = 2**63
_SURROGATE = re.compile("[\ud800-\udfff]")
MOST_PROMPT_CHARACTERS = 400_000

Text = Annotated[str, Field(max_length=MOST_PROMPT_CHARACTERS), STORABLE]
Stop = Annotated[str, Field(min_length=1, max_length=256), STORABLE]
MaxTokens = Annotated[int, Field(ge=1, strict=True)]


def _joined(content: object) -> object:
    """A content of text parts as one text."""
    if isinstance(content, str) or content is None:
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    if not parts or not all(isinstance(part, dict) and part.keys() == {"type", "text"} for part in parts):
        raise ValueError('must be a text, or a list of parts {"type": "text", "text": …}; Motet reads text alone')
    if not all(part["type"] == "text" and isinstance(part["text"], str) for part in parts):
        raise ValueError('holds a part that is no text; Motet reads parts {"type": "text", "text": …} alone')
    return "".join(part["text"] for part in parts)


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


def _prompts(prompt: object) -> object:
    """Texts or lists of tokens, from any form that OpenAI takes."""
    found = prompt if isinstance(prompt, list) and not all(map(_is_token, prompt)) else [prompt]
    if not all(isinstance(one, str) or (isinstance(one, list) and one and all(map(_is_token, one))) for one in found):
        raise ValueError("must be a text, a list of texts, a list of tokens, or a list of lists of tokens, none of them empty")
    for one in found:
        if isinstance(one, str):
            _check_text(one)
    if len(found) > MOST_CHOICES:
        raise ValueError(f"holds {len(found)} prompts; send at most {MOST_CHOICES} at a time")
    return found


def _is_token(one: object) -> bool:
    return isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**31


def _check_text(text: str) -> None:
    if len(text) > MOST_PROMPT_CHARACTERS:
        raise ValueError(f"holds a text of {len(text)} characters; at most {MOST_PROMPT_CHARACTERS} can be read")
    if "\0" in text:
        raise ValueError("holds a NUL character, which no text may")
    if _SURROGATE.search(text):
        raise ValueError("holds a lone surrogate, which is no character")


class ChatMessage(Strict):
    """Of an assistant's message that a program sends back, the fields that hold nothing are accepted too."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_joined)]
    name: Annotated[str, Field(max_length=64), STORABLE] | None = None  # many templates write none
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def turn(self) -> ChatTurn:
        role = "system" if self.role == "developer" else self.role
        return ChatTurn(role=role, content=self.content, name=self.name)


class StreamOptions(Strict):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None  # there is none to leave out


class AnyCompletion(Strict):
    """What both kinds of requests share. `precision` is Motet's own: how the base is stored, where no adapter says it."""

    model: ModelName
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES, strict=True)] | None = None
    max_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2), NO_BOOL] | None = None
    top_p: Annotated[float, Field(gt=0, le=1), NO_BOOL] | None = None
    stop: Annotated[list[Stop], Field(max_length=4), BeforeValidator(_listed)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None  # not used
    precision: Literal["bf16", "nf4", "nf4_double"] | None = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None

    nothing: ClassVar[dict[str, tuple[Any, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
    }

    @field_validator("*", mode="before")
    @classmethod
    def _supported(cls, value: Any, info: Any) -> Any:
        harmless = cls.nothing.get(info.field_name)
        if harmless is not None and value is not None and (isinstance(value, bool) != isinstance(harmless[0], bool)):
            raise ValueError(f"is not supported by Motet; leave {info.field_name} out")
        if harmless is not None and value is not None and value not in harmless:
            raise ValueError(f"is not supported by Motet; leave {info.field_name} out")
        return value

    @model_validator(mode="after")
    def _options_of_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' is only allowed when 'stream' is true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def _work(self, request_id: str, tenant_id: str, max_tokens: int | None, most: int, **more: Any) -> CompletionWork:
        return CompletionWork(
            request_id=request_id,
            tenant_id=tenant_id,
            n=self.n or 1,
            max_tokens=max_tokens or most,
            exact_max_tokens=max_tokens is not None,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            stop=self.stop or [],
            seed=secrets.randbelow(_SEEDS) if self.seed is None else self.seed % _SEEDS,
            **more,
        )


class ChatRequest(AnyCompletion):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS, strict=True)] | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    moderation: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None

    nothing: ClassVar[dict[str, tuple[Any, ...]]] = AnyCompletion.nothing | {
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": ({},),
        "prediction": ({},),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "web_search_options": ({},),
        "moderation": ({},),
        "store": (False,),
        "metadata": ({},),
        "service_tier": ("auto", "default"),
    }

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("holds both 'max_tokens' and 'max_completion_tokens'; leave one of them out")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed when 'logprobs' is true")
        return self

    def work(self, request_id: str, tenant_id: str, most: int) -> CompletionWork:
        """most: tokens of a choice where the request does not say."""
        wanted = self.max_completion_tokens or self.max_tokens
        return self._work(
            request_id,
            tenant_id,
            wanted,
            most,
            messages=[message.turn for message in self.messages],
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    @property
    def most_named(self) -> str:
        """The field that says how many tokens an answer may have."""
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"


DEFAULT_TEXT_TOKENS = 16  # as OpenAI's


class TextRequest(AnyCompletion):
    prompt: Annotated[list[Any], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=5, strict=True)] | None = None
    echo: Any = None
    best_of: Any = None
    suffix: Any = None

    nothing: ClassVar[dict[str, tuple[Any, ...]]] = AnyCompletion.nothing | {
        "echo": (False,),
        "best_of": (1,),
        "suffix": ("",),
    }
    most_named: ClassVar[str] = "max_tokens"

    @model_validator(mode="after")
    def _choices(self) -> Self:
        if len(self.prompt) * (self.n or 1) > MOST_CHOICES:
            raise ValueError(f"'prompt' and 'n' ask for more than {MOST_CHOICES} texts; send fewer prompts at a time")
        return self

    def work(self, request_id: str, tenant_id: str, most: int) -> CompletionWork:
        wanted = self.max_tokens or min(DEFAULT_TEXT_TOKENS, most)
        found = self._work(request_id, tenant_id, wanted, most, prompts=self.prompt, logprobs=self.logprobs)
        return found.model_copy(update={"exact_max_tokens": self.max_tokens is not None})
