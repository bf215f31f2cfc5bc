"""Activation checkpointing (Chen et al. 2016): forward keeps a function's inputs, backward computes what it saved again.

Does what torch.utils.checkpoint does without re-entering autograd. That one imports torch's compiler, 1.0 s of CPU time in each
process. Keeps no random state and checks no shapes: the function must be deterministic.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _AllComputed(Exception):
    """Backward needs nothing that the function computes from here on."""


def recomputed(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """`function(*args)`. The tensors that autograd would save are computed again, all at once, when backward asks for the first
    of them, and each is given out once: a graph that is kept cannot be walked twice."""
    count = 0
    again: dict[int, Tensor] = {}

    def number(saved: Tensor) -> int:
        nonlocal count
        count += 1
        return count - 1

    def take(saved: int) -> Tensor:
        if not again:
            _compute_again(function, args, count, again)
        return again.pop(saved)

    with saved_tensors_hooks(number, take):
        return function(*args)


def _compute_again(function: Callable[..., Tensor], args: tuple[Any, ...], count: int, again: dict[int, Tensor]) -> None:
    """Fill `again` with the `count` tensors that the function saves, in order."""

    def keep(saved: Tensor) -> Tensor:
        again[len(again)] = saved.detach()
        if len(again) == count:
            raise _AllComputed
        return saved

    try:
        with torch.enable_grad(), saved_tensors_hooks(keep, lambda saved: saved):
            function(*args)
    except _AllComputed:
        return
