"""Prompts and references of held-out rows: a row up to its last answer, and that answer as text. Knows no models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from contract.task_spec import Objective
from contract.wording.row_words import cut_sentence
from worker.data.dataset import TokenRows, all_rows
from worker.data.token_stream import TokenStream
from worker.data.tokenising.file_tokeniser import Reading
from worker.model.example import Example


@dataclass(frozen=True)
class Prompt:
    """tokens: what a model is given. reference: the row's own answer, without special tokens. text: the prompt as text."""

    tokens: tuple[int, ...]
    reference: str
    text: str


@dataclass(frozen=True)
class PromptFile:
    """TokenRows of a file of prompts, in its order. truncated: rows that were cut to max_seq_len; skipped: rows, mostly of
    these, with no answer left."""

    rows: TokenRows
    truncated: int
    skipped: int

    @classmethod
    def of(cls, stream: TokenStream) -> Self:
        return cls(all_rows(stream), stream.truncated, stream.skipped)

    @property
    def notes(self) -> list[str]:
        """What its rows have lost, in sentences."""
        said = cut_sentence(self.truncated, self.skipped)
        return [f"of the file of prompts {said}"] if said else []


def prompt_reading(reading: Reading) -> Reading:
    """How rows of prompts become tokens: as those of a task that learns from answers, whatever this one learns from."""
    return reading if reading.objective.type == "sft" else replace(reading, objective=Objective())


def prompts_of(rows: TokenRows, most: int, decode: Callable[[Sequence[int]], str]) -> list[Prompt]:
    """The prompts of the first `most` rows. Of preference rows the preferred answer is the reference.

    A row without a prompt has one without text, which holds the tokens that precede any text, or where the tokenizer has none
    such its answer's first token: what nothing precedes cannot be generated.
    """
    chosen = [rows.sequences[place] for place in range(0, len(rows.sequences), rows.per_row)[:most]]
    return [_prompt(example, decode) for example in chosen]


def _prompt(example: Example, decode: Callable[[Sequence[int]], str]) -> Prompt:
    """The last run of labels is the answer; what precedes it is the prompt."""
    labels = np.flatnonzero(example.loss_mask)
    end = int(labels[-1]) + 1
    gaps = np.flatnonzero(np.diff(labels) > 1)
    start = int(labels[gaps[-1] + 1]) if len(gaps) else int(labels[0])
    tokens, answer = example.tokens[:start].tolist(), example.tokens[start:end].tolist()
    return Prompt(tuple(tokens), decode(answer), decode(tokens))
