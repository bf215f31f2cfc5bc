"""Reads rows with a transformers tokenizer, and gives tokens as arrays. Knows neither files nor splits."""

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError as JinjaError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from contract.rows.row_encoding import RowReader, Tokens
from contract.rows.tokenizer import TEMPLATE_FAULTS, Messages, Offsets, TemplateError, TokenizerError, Tools
from worker.model.example import Example


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the base in this folder, whose code is not run. Raises OSError, TokenizerError."""
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
        raise TokenizerError(f"the base model's tokenizer cannot be read: {type(error).__name__}: {error}") from None
    return found


def reader_of(tokenizer: PreTrainedTokenizerBase) -> RowReader:
    """The reader with this tokenizer, which must be a fast one (it gives offsets). Raises TokenizerError."""
    if not tokenizer.is_fast:
        raise TokenizerError(
            "the base model has no fast tokenizer (tokenizer.json), which tells where its tokens lie in the text"
        )
    return RowReader(_Loaded(tokenizer))


def fingerprint_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over all that determines a row's tokens: the tokenizer, its chat template, the library versions."""
    said = [
        tokenizer.backend_tokenizer.to_str(),
        tokenizer.chat_template,
        {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        tokenizer.eos_token_id,
        tokenizer("", add_special_tokens=True, verbose=False)["input_ids"],
        bool(getattr(tokenizer, "split_special_tokens", False)),
        [version(name) for name in ("transformers", "tokenizers", "jinja2")],
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def reads_date(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template may write the date, so that a row's tokens depend on when its task was created."""
    return _CLOCK in json.dumps(tokenizer.chat_template)


def example(tokens: Tokens) -> Example:
    """The sequence as arrays."""
    return Example(np.array(tokens.ids, dtype=np.int32), np.array(tokens.learned, dtype=np.bool_))


class _Loaded:
    """Implements contract.rows.tokenizer.Tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._reads_date = reads_date(tokenizer)

    @property
    def end(self) -> int | None:
        end = self._tokenizer.eos_token_id
        return None if end is None else int(end)

    @property
    def lead(self) -> list[int]:
        bos = self._tokenizer.bos_token_id
        begun = self._tokenizer("", add_special_tokens=True, verbose=False)["input_ids"]
        return [int(bos)] if bos is not None and list(begun[:1]) == [bos] else []

    def ids(self, texts: list[str]) -> list[list[int]]:
        return list(self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        encoded = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)

    def chat(self, messages: Messages, add_generation_prompt: bool, now: datetime | None, tools: Tools | None = None) -> str:
        if self._tokenizer.chat_template is None:
            raise TemplateError.missing()
        pinned = self._pinned(now, tools) if self._reads_date else {}
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=None if tools is None else [*tools],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **pinned,
                )
            )
        except (JinjaError, *TEMPLATE_FAULTS) as error:
            raise TemplateError.of(error) from None

    def template_says(self, word: str, tools: Tools | None) -> bool:
        return word in self._source(tools)

    def _source(self, tools: Tools | None) -> str:
        if self._tokenizer.chat_template is None:
            raise TemplateError.missing()
        return str(self._tokenizer.get_chat_template(tools=tools))

    def _pinned(self, now: datetime | None, tools: Tools | None) -> dict[str, Any]:
        """Template arguments that make `strftime_now` write `now`. transformers passes none of our functions to a template, so
        a macro of that name is put before it."""
        if now is None:
            raise TemplateError.undated()
        return {"chat_template": _MACRO + self._source(tools), _PARTS: _parts(now)}


_CLOCK, _PARTS = "strftime_now", "motet_date_parts"
# One line, whose end trim_blocks removes, so that the template behind it renders as if it came first.
_MACRO = (
    "{% macro strftime_now(format) %}{% set said = namespace(held='') %}{% for c in format %}"
    "{% if said.held == '' and c != '%' %}{{ c }}"
    "{% elif said.held ~ c in motet_date_parts %}{{ motet_date_parts[said.held ~ c] }}{% set said.held = '' %}"
    "{% elif said.held == '' or c in '-_0^#:' %}{% set said.held = said.held ~ c %}"
    "{% else %}{{ said.held ~ c }}{% set said.held = '' %}{% endif %}"
    "{% endfor %}{{ said.held }}{% endmacro %}\n"
)
_DIRECTIVES = "aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%"
_FLAGS = ("", "-", "_", "0", "^", "#", ":")


@lru_cache(maxsize=8)
def _parts(now: datetime) -> dict[str, str]:
    """Each strftime directive, with and without the flags that glibc knows, as written at this moment."""
    return {part: now.strftime(part) for flag in _FLAGS for letter in _DIRECTIVES if (part := f"%{flag}{letter}")}
