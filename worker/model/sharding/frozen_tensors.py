"""The tensors that store a frozen weight, in one order, and the same weight over other tensors. Knows each stored form, and no
ranks."""

from collections.abc import Iterator
from dataclasses import replace

from grouped_lora.base.fp8 import Fp8Weight
from grouped_lora.base.frozen_product import Frozen
from grouped_lora.base.nf4 import Matrix, Nf4Weight, Scales
from torch import Tensor


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


def _matrix(part: Matrix, tensors: Iterator[Tensor]) -> Matrix:
    codes, values = next(tensors), next(tensors)
    outer = next(tensors) if part.scales.outer is not None else None
    mean = next(tensors) if part.scales.mean is not None else None
    return replace(part, codes=codes, scales=Scales(values, outer, mean))
