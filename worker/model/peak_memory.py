"""Measures the peak of live tensor bytes while a piece of work runs. Knows no models.

Counts operation by operation from the storages, so it is exact for tensors, the same on every machine and independent of the
allocator's caches. It does not see memory inside library calls.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Meter(TorchDispatchMode):
    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen = weakref.WeakSet(tensor.untyped_storage() for tensor in known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under this mode. To guard it against the compiler would import that: 1.0 s of CPU time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, storage.nbytes())

    def _gone(self, size: int) -> None:
        self.live -= size


def peak_bytes(work: Callable[[], object], known: Iterable[Tensor]) -> int:
    """The most bytes that tensors made by `work` held at one time. `known` are tensors that were there before."""
    with _Meter(known) as meter:
        work()
    return meter.peak
