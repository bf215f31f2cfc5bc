"""The stored forms of frozen weights: the tensors that store one, in one order, and which of their bytes come from which rows.
Knows no ranks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from grouped_lora.base.fp8 import CODE, Fp8Weight, check_sizes, quantise_rows
from grouped_lora.base.frozen_product import Frozen
from grouped_lora.base.nf4 import BLOCK, SCALES_BLOCK, Matrix, Nf4Weight, Scales
from torch import Tensor

from contract.task_spec import Precision


def stored(matrices: Sequence[Tensor], precision: Precision) -> Frozen:
    """Matrices [N_i, K] stacked along their rows, as tasks of this precision hold them."""
    if precision == "bf16":
        return torch.cat(list(matrices))
    return Fp8Weight.of(matrices) if precision == "fp8" else Nf4Weight.of(matrices, double=precision == "nf4_double")


def unfilled(shapes: Sequence[Sequence[int]], dtype: torch.dtype, precision: Precision, device: torch.device) -> Frozen:
    """The same of matrices of these shapes and this dtype, over tensors on the meta device. Raises what `stored` raises on the
    device."""
    if precision in ("nf4", "nf4_double"):
        return Nf4Weight(tuple(_unfilled_matrix(rows, columns, precision == "nf4_double") for rows, columns in shapes), dtype)
    whole = torch.Size((sum(shape[0] for shape in shapes), shapes[0][1]))
    if precision == "bf16":
        return torch.empty(whole, dtype=dtype, device="meta")
    check_sizes(whole, device)
    return Fp8Weight(_unfilled(whole, CODE), _unfilled(whole[:1], torch.float32), dtype)


def tensors_of(weight: Frozen) -> list[Tensor]:
    """Every tensor that stores the weight."""
    if isinstance(weight, Tensor):
        return [weight]
    assert isinstance(weight, Nf4Weight | Fp8Weight), "a stored form of frozen weights"
    return list(weight.tensors())


def over(weight: Frozen, tensors: Iterator[Tensor]) -> Frozen:
    """The weight stored in the next of these tensors, which have the shapes and dtypes of `tensors_of`."""
    if isinstance(weight, Tensor):
        return next(tensors)
    if isinstance(weight, Fp8Weight):
        return Fp8Weight(next(tensors), next(tensors), weight.dtype)
    assert isinstance(weight, Nf4Weight), "a stored form of frozen weights"
    return Nf4Weight(tuple(_matrix(part, tensors) for part in weight.parts), weight.dtype)


@dataclass(frozen=True)
class Strip:
    """A matrix's bytes in one of the tensors that store its weight: `size` from `start` on, of the `tensor`-th. step_bytes: of
    a step of rows; None: each byte depends on all rows."""

    tensor: int
    start: int
    size: int
    step_bytes: int | None


@dataclass(frozen=True)
class StoredMatrix:
    """step: rows after which codes begin anew, so that whole steps of rows are stored alike by themselves."""

    rows: int
    step: int
    strips: tuple[Strip, ...]


def stored_matrices(weight: Frozen, shapes: Sequence[Sequence[int]]) -> list[StoredMatrix]:
    """Where each of the matrices that are stacked in a weight lies."""
    if isinstance(weight, Nf4Weight):
        return list(_nf4_matrices(weight))
    found, row = [], 0
    for rows, columns in shapes:
        wide = [
            columns * tensor.element_size() if tensor.dim() == 2 else tensor.element_size() for tensor in tensors_of(weight)
        ]
        strips = (Strip(place, row * size, rows * size, size) for place, size in enumerate(wide))
        found.append(StoredMatrix(rows, 1, tuple(strips)))
        row += rows
    return found


def stored_rows(rows_NK: Tensor, precision: Precision) -> list[Tensor]:
    """What stores these rows of a matrix, in the order of its strips."""
    if precision == "bf16":
        return [rows_NK]
    if precision == "fp8":
        return list(quantise_rows(rows_NK))  # a GPU's products restrict the sizes of the whole alone
    return tensors_of(stored([rows_NK], precision))


def _nf4_matrices(weight: Nf4Weight) -> Iterator[StoredMatrix]:
    tensor = 0
    for part in weight.parts:
        kept = tensors_of(replace(weight, parts=(part,)))
        step = BLOCK // math.gcd(BLOCK, part.columns)
        blocks = step * part.columns // BLOCK
        by_step = [blocks * BLOCK // 2, blocks * part.scales.values.element_size() if part.scales.mean is None else None]
        by_step += [None] * (len(kept) - len(by_step))  # scales in 8 bits depend on the mean of all
        strips = [Strip(tensor + at, 0, one.nbytes, size) for at, (one, size) in enumerate(zip(kept, by_step, strict=True))]
        yield StoredMatrix(part.rows, step, tuple(strips))
        tensor += len(kept)


def _unfilled_matrix(rows: int, columns: int, double: bool) -> Matrix:
    blocks = -(-rows * columns // BLOCK)
    codes = _unfilled((-(-rows * columns // 2),), torch.uint8)
    if not double:
        return Matrix(rows, columns, codes, Scales(_unfilled((blocks,), torch.float32)))
    outer = _unfilled((-(-blocks // SCALES_BLOCK),), torch.float32)
    return Matrix(rows, columns, codes, Scales(_unfilled((blocks,), torch.uint8), outer, _unfilled((), torch.float32)))


def _unfilled(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _matrix(part: Matrix, tensors: Iterator[Tensor]) -> Matrix:
    codes, values = next(tensors), next(tensors)
    outer = next(tensors) if part.scales.outer is not None else None
    mean = next(tensors) if part.scales.mean is not None else None
    return replace(part, codes=codes, scales=Scales(values, outer, mean))
