"""The reader of rows with the tokenizer that transformers loads, and its tokens as arrays. Knows neither files nor splits."""

from collections.abc import Iterator

import numpy as np
from jinja2 import TemplateError as JinjaError
from transformers import PreTrainedTokenizerBase

from contract.row_encoding import TEMPLATE_FAULTS, Messages, Offsets, RowReader, TemplateError, TokenizerError, Tokens
from worker.model.flat_batch import Example


def reader_of(tokenizer: PreTrainedTokenizerBase) -> RowReader:
    """The reader with this tokenizer, which must be a fast one (it tells offsets). Raises TokenizerError."""
    if not tokenizer.is_fast:
        raise TokenizerError(
            "the base model has no fast tokenizer (tokenizer.json), which tells where its tokens lie in the text"
        )
    return RowReader(_Loaded(tokenizer))


def example(tokens: Tokens) -> Example:
    """The sequence as arrays."""
    return Example(np.array(tokens.ids, dtype=np.int32), np.array(tokens.learned, dtype=np.bool_))


class _Loaded:
    """A contract.row_encoding.Tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @property
    def end(self) -> int | None:
        end = self._tokenizer.eos_token_id
        return None if end is None else int(end)

    @property
    def lead(self) -> list[int]:
        bos = self._tokenizer.bos_token_id
        begun = self._tokenizer("", add_special_tokens=True, verbose=False)["input_ids"]
        return [int(bos)] if bos is not None and list(begun[:1]) == [bos] else []

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        encoded = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)

    def chat(self, messages: Messages, add_generation_prompt: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise TemplateError.missing()
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
            )
        except (JinjaError, *TEMPLATE_FAULTS) as error:
            raise TemplateError.of(error) from None
