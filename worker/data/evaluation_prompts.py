"""Prompts and references of held-out rows: a row up to its last answer, and that answer as text. Knows no models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from worker.data.dataset import TokenRows
from worker.model.flat_batch import Example


@dataclass(frozen=True)
class Prompt:
    """tokens: what a model is given. reference: the row's own answer, without special tokens. text: the prompt as text."""

    tokens: tuple[int, ...]
    reference: str
    text: str


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
