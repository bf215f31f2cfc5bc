"""Reads the bytes that a rank keeps of a unit: of each matrix as few rows as store them. Knows no layers and no files.

Rows are stored by themselves wherever that makes the bits that they have within the whole matrix: any rows in bf16 and fp8,
and in NF4 those between which blocks of 64 numbers begin anew. Codes and scales lie apart, so a matrix whose codes and scales
belong to several ranks is read by each of these; scales in 8 bits (double NF4) take the mean of all, and so the whole matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contract.task_spec import Precision
from worker.model.sharding.frozen_tensors import StoredMatrix, Strip, stored_rows

ReadRows = Callable[[int, int], Tensor]  # rows [first, stop) of a matrix, [stop - first, K]


@dataclass(frozen=True)
class UnreadMatrix:
    """A matrix of a unit. first_tensor: of the unit's, the one from which its strips count."""

    place: StoredMatrix
    first_tensor: int
    read: ReadRows


def read_part(part: Tensor, first: int, starts: Sequence[int], matrices: Sequence[UnreadMatrix], precision: Precision) -> None:
    """Write the bytes of a unit from `first` on to part, uint8 [n], matrix by matrix. starts: of the unit's tensors."""
    for matrix in matrices:
        strips = [(starts[matrix.first_tensor + strip.tensor] + strip.start, strip) for strip in matrix.place.strips]
        rows = _rows(matrix.place, [(start - first, strip) for start, strip in strips], len(part))
        if rows is None:
            continue
        for (start, strip), tensor in zip(strips, stored_rows(matrix.read(*rows), precision), strict=True):
            skipped = rows[0] // matrix.place.step * (strip.step_bytes or 0)
            _write(part, start + skipped - first, tensor)


def _rows(place: StoredMatrix, strips: Sequence[tuple[int, Strip]], size: int) -> tuple[int, int] | None:
    """The rows that a part of `size` bytes depends on; None: on none. strips: each with where it starts in the part."""
    found = [place.rows, 0]
    for start, strip in strips:
        lower, upper = max(0, -start), min(strip.size, size - start)
        if lower >= upper:
            continue
        if strip.step_bytes is None:
            return 0, place.rows
        found[0] = min(found[0], lower // strip.step_bytes * place.step)
        found[1] = max(found[1], -(-upper // strip.step_bytes) * place.step)
    return (found[0], min(found[1], place.rows)) if found[0] < found[1] else None


def _write(part: Tensor, start: int, tensor: Tensor) -> None:
    """Write to part what of the tensor lies in it, if its first byte is the part's `start`-th."""
    lower, upper = max(0, start), min(len(part), start + tensor.nbytes)
    if lower < upper:
        part[lower:upper] = tensor.contiguous().reshape(-1).view(torch.uint8)[lower - start : upper - start]
