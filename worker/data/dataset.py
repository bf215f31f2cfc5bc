"""A task's data: the rows of its files' token streams, the held-out split, and the order in which a job reads them.

Rows are memory-mapped: each takes a few numbers of memory. Knows no JSON, no tokenizers (token_cache.py) and no tensors. Split
and order depend on the rows' bytes and the jobs' seeds alone, so that all jobs validate on the same rows and a resumed job
continues where it stopped.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from contract.rows.row_encoding import RowReader
from contract.task_spec import TaskSpec
from contract.validation_parts import held_out_rows, validation_parts
from worker.data.token_cache import loose_stream
from worker.data.token_stream import StreamView, TokenStream, axis_length
from worker.data.tokenising.file_tokeniser import DataError, Reading
from worker.model.example import Example

_AT_ONCE = 4096  # numbers converted at a time


class Lengths(Sequence[int]):
    """An int32 array as a sequence of Python ints, which sum without overflow and serialise to JSON."""

    def __init__(self, array: NDArray[np.int32]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        numbers: int | list[int] = self.array[at].tolist()
        return numbers

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self.array), _AT_ONCE):
            yield from self.array[first : first + _AT_ONCE].tolist()


@dataclass(frozen=True)
class TokenRows:
    """Rows as token sequences: one a row, or two for preference rows, the chosen answer before the rejected one."""

    sequences: Sequence[Example]
    per_row: int = 1

    def __len__(self) -> int:
        return len(self.sequences) // self.per_row

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of each sequence on the flat axis."""
        if isinstance(self.sequences, StreamView):
            return Lengths(self.sequences.lengths)
        return Lengths(np.array([axis_length(example) for example in self.sequences], np.int32))

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.array.max())

    @cached_property
    def mean_length(self) -> float:
        """Tokens of a row on average."""
        return int(self.lengths.array.sum(dtype=np.int64)) / len(self)

    @property
    def largest_token(self) -> int:
        """An upper bound of all token ids."""
        if isinstance(self.sequences, StreamView):
            return self.sequences.stream.largest_token
        return max(int(example.tokens.max()) for example in self.sequences)

    def hashed(self) -> Iterator[bytes]:
        """sha256 of each row, over its tokens and labels."""
        for place in range(0, len(self.sequences), self.per_row):
            yield _sha256(self.sequences[place : place + self.per_row])

    @cached_property
    def row_digests(self) -> list[bytes]:
        """As `hashed`, at once."""
        return list(self.hashed())

    @cached_property
    def clusters(self) -> list[int]:
        """Of each row the number of the first one that equals it in tokens and labels; empty where no two are equal."""
        first: dict[bytes, int] = {}
        found = [first.setdefault(row, number) for number, row in enumerate(self.row_digests)]
        return found if len(first) < len(found) else []

    @cached_property
    def digest(self) -> str:
        """Identifies these rows: sha256 over the stream they are read from, or over their tokens."""
        if isinstance(self.sequences, StreamView):
            return self.sequences.digest
        return _sha256(self.sequences).hex()

    def first(self, rows: int) -> "TokenRows":
        """The first so many rows."""
        if rows >= len(self):
            return self
        return TokenRows(self.sequences[: rows * self.per_row], self.per_row)

    def places(self, rows: Iterable[int]) -> list[int]:
        """Indexes of the sequences of these rows."""
        return [int(row) * self.per_row + part for row in rows for part in range(self.per_row)]


@dataclass(frozen=True)
class DataSet:
    """Rows of one task, tokenised once, memory-mapped, and shared by its jobs. validation: the rows of a full evaluation, in
    the order of their hashes, so that their first `trend_rows` are a random part of them; copies of a row come last."""

    train: TokenRows
    validation: TokenRows
    trend_rows: int
    truncated: int  # rows longer than max_seq_len
    skipped: int  # rows with nothing left to learn after that
    overlap: int  # validation rows that are also trained on

    @cached_property
    def trend(self) -> TokenRows:
        """The validation rows that every evaluation of a job reads, the first of those that a full one reads."""
        return self.validation.first(self.trend_rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, trained or validated."""
        return max(self.train.longest, self.validation.longest)

    @property
    def largest_token(self) -> int:
        return max(self.train.largest_token, self.validation.largest_token)


def load(
    spec: TaskSpec,
    train_file: Path,
    validation_file: Path | None,
    reader: RowReader,
    on_progress: Callable[[], None] = lambda: None,
) -> DataSet:
    """Tokenise and split files outside any cache: see `split`."""
    reading = Reading(reader, spec.objective, spec.training.max_seq_len)
    train = loose_stream(train_file, reading, on_progress)
    return split(spec, train, loose_stream(validation_file, reading, on_progress) if validation_file is not None else None)


def split(spec: TaskSpec, train: TokenStream, held: TokenStream | None) -> DataSet:
    """The training and validation rows, from the training file's stream and the validation file's, if there is one. Raises
    DataError."""
    if held is not None:
        trained, validation, source = np.arange(train.rows), np.arange(held.rows), held
        truncated, skipped = train.truncated + held.truncated, train.skipped + held.skipped
    else:
        validation, source = held_out(train.hashes, spec.dataset.validation_fraction, spec.dataset.max_validation_rows), train
        trained = np.flatnonzero(~_among(train.hashes, train.hashes[validation]))
        truncated, skipped = train.truncated, train.skipped
    for name, kept in (("training", trained), ("validation", validation)):
        if not len(kept):
            others = len(trained) + len(validation) if held is not None else train.rows
            raise DataError(_why_none(name, skipped, others, spec.training.max_seq_len))
    rows = _rows(train, trained)
    parts = validation_parts(spec, len(rows), len(validation), _rows(source, validation).mean_length / rows.mean_length)
    read = validation[_copies_last(source.hashes[validation])[: parts.full]]
    validated = _rows(source, read)
    near = trained[np.isin(_token_sums(train)[trained], _token_sums(source)[read])]  # only these need all tokens compared
    return DataSet(rows, validated, parts.trend, truncated, skipped, _overlap(validated, _rows(train, near)))


def _why_none(name: str, skipped: int, others: int, max_seq_len: int) -> str:
    """Why no row is left to train or validate on: cut too short, or equal to those on the other side of the split."""
    if skipped:  # the base's positions are not known here
        return (
            f"no {name} rows are left: {skipped} had nothing to learn within max_seq_len {max_seq_len}, {others} others remain "
            "in all; raise training.max_seq_len, which the base model's positions bound, shorten the rows or bring more"
        )
    return (
        f"no {name} rows are left: the {others} rows are too much alike to be split, since equal rows stay on one side; "
        "bring more distinct rows, or name a validation file"
    )


def all_rows(stream: TokenStream) -> TokenRows:
    """The rows of a file that is not split."""
    return _rows(stream, np.arange(stream.rows))


def _rows(stream: TokenStream, rows: NDArray[np.int64]) -> TokenRows:
    return TokenRows(StreamView(stream, rows), stream.per_row)


def held_out(hashes: NDArray[np.uint8], fraction: float, at_most: int) -> NDArray[np.int64]:
    """Which rows are held out for validation, ascending: those with the lowest hashes (uint8 [rows, 32]), `fraction` of all
    (rounded), at least one.

    Rows that equal a held-out row must leave training too, which is the caller's part.
    """
    return _lowest(hashes, held_out_rows(len(hashes), fraction, at_most))


def _lowest(hashes: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    """Indexes of the `size` lowest hashes, ascending; earlier rows win ties."""
    return np.sort(_by_hash(hashes, size))


def _by_hash(hashes: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    """Indexes of the `size` lowest hashes, in the order of the hashes; earlier rows win ties."""
    size = min(size, len(hashes))
    if not size:
        return np.empty(0, np.int64)
    words = _words(hashes)
    first = words[0]
    near = np.flatnonzero(first <= np.partition(first, size - 1)[size - 1])  # only these need all words compared
    order = np.lexsort([word[near] for word in reversed(words)])  # stable
    return near[order[:size]]


def _copies_last(hashes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Indexes of all hashes in their order, the first of equal ones before the others of any."""
    order = _by_hash(hashes, len(hashes))
    ordered = hashes[order]
    copies = np.append(False, (ordered[1:] == ordered[:-1]).all(axis=1))
    return order[np.argsort(copies, kind="stable")]


def _among(hashes: NDArray[np.uint8], some: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """For each row, whether its hash is one of `some`."""
    found = np.isin(_words(hashes)[0], _words(some)[0])
    wanted = {one.tobytes() for one in some}
    for place in np.flatnonzero(found):
        found[place] = hashes[place].tobytes() in wanted
    return found


def _overlap(validated: TokenRows, trained: TokenRows) -> int:
    """How many of the validation rows equal a trained one in tokens and labels: rows may do so that differ in bytes, as in
    their JSON's white space, in fields that nobody reads, or beyond max_seq_len."""
    both = set(validated.row_digests).intersection(trained.hashed())
    return sum(one in both for one in validated.row_digests)


def _token_sums(stream: TokenStream) -> NDArray[np.int64]:
    """The sum of each row's token ids."""
    return np.add.reduceat(stream.tokens, stream.bounds[: -1 : stream.per_row], dtype=np.int64)


def _sha256(sequences: Iterable[Example]) -> bytes:
    """sha256 over tokens and labels."""
    said = hashlib.sha256()
    for example in sequences:
        said.update(len(example.tokens).to_bytes(4, "little") + example.tokens.tobytes() + example.loss_mask.tobytes())
    return said.digest()


def _words(hashes: NDArray[np.uint8]) -> list[NDArray[np.uint64]]:
    """The hashes as four arrays of uint64, the most significant first."""
    return [np.ascontiguousarray(hashes[:, at : at + 8]).view(">u8").ravel().astype(np.uint64) for at in range(0, 32, 8)]


class Order:
    """Which rows a job reads at which step: each epoch a permutation drawn from (seed, epoch) alone, the last batch short."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self._per_epoch = -(-rows // batch_size)
        self._epoch, self._permutation = -1, np.empty(0, np.int32)

    def batch(self, step: int) -> np.ndarray:
        """Row numbers, int32 [<= batch_size], of optimizer step `step`, counted from 0."""
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._permutation, self._epoch = _permutation(self._rows, self._seed, epoch), epoch
        return self._permutation[place * self._batch_size : (place + 1) * self._batch_size]


_permutations: WeakValueDictionary[tuple[int, int, int], NDArray[np.int32]] = WeakValueDictionary()


def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """The epoch's order, one array for all jobs in that epoch: 4 MB for a million rows."""
    found = _permutations.get((rows, seed, epoch))
    if found is None:
        # RandomState's streams never change, so a resume under another numpy version reads the same order.
        found = np.random.RandomState([seed, epoch]).permutation(rows).astype(np.int32)
        _permutations[rows, seed, epoch] = found
    return found
