"""Which tokens are labels where tokens and turns do not end together, and where a row is cut."""

import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from contract.rows.row_encoding import RowReader, Tokens, learns, truncate
from contract.rows.tokenizer import Messages, Offsets, Tools

END = "</s>"


class Pieces:
    """A tokenizer of these pieces, and of single characters; a token's id is its place among those seen, END's is 0."""

    def __init__(self, *pieces: str) -> None:
        self.lead, self.end = list[int](), 0
        self._pattern = re.compile("|".join([re.escape(piece) for piece in (END, *pieces)] + ["."]), re.DOTALL)
        self._seen = [END]

    def ids(self, texts: list[str]) -> list[list[int]]:
        return [ids for ids, _ in self.spans(texts)]

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        for text in texts:
            found = list(self._pattern.finditer(text))
            self._seen += [one[0] for one in found if one[0] not in self._seen]
            yield [self._seen.index(one[0]) for one in found], [one.span() for one in found]

    def chat(self, messages: Messages, add_generation_prompt: bool, now: datetime | None, tools: Tools | None = None) -> str:
        names = {"user": "Q", "assistant": "A"}
        said = "".join(f"{names[one['role']]}: {one['content']}\n" for one in messages)
        return said + "A: " if add_generation_prompt else said

    def template_says(self, word: str, tools: Tools | None) -> bool:
        return False

    def labels(self, row: Tokens) -> list[str]:
        return [self._seen[id] for id, learned in zip(row.ids, row.learned, strict=True) if learned]


TALK = [
    {"role": role, "content": content}
    for role, content in (("user", "one"), ("assistant", "yes"), ("user", "two"), ("assistant", "no"))
]


@pytest.mark.parametrize(
    ("pieces", "labels"),
    [
        ((), ["y", "e", "s", "\n", "n", "o", "\n"]),
        (("\nQ: ",), ["y", "e", "s", "n", "o", "\n"]),  # holds the next question's beginning
        (("s\nQ: t",), ["y", "e", "n", "o", "\n"]),
        ((": n",), ["y", "e", "s", "\n", "o", "\n"]),  # holds the prompt's end
        ((" no",), ["y", "e", "s", "\n", " no", "\n"]),  # of the prompt white space alone, which a word's token may hold
        (("\nQ: two\nA: no",), ["y", "e", "s", "\n"]),
    ],
)
def test_a_token_that_reaches_beyond_its_turn_is_no_label(pieces: tuple[str, ...], labels: list[str]) -> None:
    tokenizer = Pieces(*pieces)
    ((row,),) = RowReader(tokenizer).read([{"messages": TALK}])
    assert tokenizer.labels(row) == labels


def test_a_completion_that_ends_with_the_end_of_sequence_gets_no_other() -> None:
    tokenizer = Pieces()
    (without,), (closed,), (twice,) = RowReader(tokenizer).read(
        [{"prompt": "a", "completion": text} for text in ("no", "no" + END, "no" + END + END)]
    )
    assert tokenizer.labels(without) == tokenizer.labels(closed) == ["n", "o", END]
    assert tokenizer.labels(twice) == ["n", "o", END, END], "as it was written"


def test_a_pair_is_learned_only_where_both_answers_have_a_label_left() -> None:
    pair = Tokens([1, 2, 3], [False, True, True]), Tokens([1, 2, 3, 4], [False, False, False, True])
    assert learns(pair)
    assert learns(truncate(pair, 4)[0])
    assert not learns(truncate(pair, 3)[0])
    assert truncate(pair, 4) == (pair, False), "a row that just fits is not cut"
    assert truncate(pair, 3)[1]


def test_a_pair_of_equal_answers_teaches_nothing() -> None:
    pair = Tokens([1, 2, 3, 4], [False, True, True, True]), Tokens([1, 2, 3, 5], [False, True, True, True])
    assert learns(truncate(pair, 4)[0])
    assert not learns(truncate(pair, 3)[0])
    assert learns(pair[:1])
