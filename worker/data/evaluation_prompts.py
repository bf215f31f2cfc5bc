"""Prompts and references of held-out rows: a row up to its last answer, and that answer as text. Knows no models."""

from collections.abc import Callable, Sequence, Set
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
    """tokens: what a model is given. answer: the row's own answer, and reference the same as text, without special tokens.
    text: the prompt as text."""

    tokens: tuple[int, ...]
    answer: tuple[int, ...]
    reference: str
    text: str

    def is_cut(self, max_seq_len: int, ends: Set[int]) -> bool:
        """Whether its answer reaches the last token of a row of so many, and has none of the tokens that end one."""
        return len(self.tokens) + len(self.answer) == max_seq_len and ends.isdisjoint(self.answer)


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
    return Prompt(tuple(tokens), tuple(answer), decode(answer), decode(tokens))


def prompt_notes(prompts: Sequence[Prompt], max_seq_len: int, ends: Set[int]) -> list[str]:
    """What is missing of these prompts, in sentences. ends: the tokens that end a text."""
    said, asked = [], [prompt for prompt in prompts if prompt.text]
    if len(asked) < len(prompts):
        said.append(f"{len(prompts) - len(asked)} of {len(prompts)} rows have no prompt and are left out")
    if cut := sum(prompt.is_cut(max_seq_len, ends) for prompt in asked):
        were = "reference was" if cut == len(asked) == 1 else "references were"
        said.append(
            f"{cut} of {len(asked)} {were} cut by training.max_seq_len, so texts are compared with less than the row's answer; "
            "raise it, or shorten the rows"
        )
    return said
