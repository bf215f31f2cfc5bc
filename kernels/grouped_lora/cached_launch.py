"""Launch cache: finds the compiled kernel of a repeated launch by one dictionary lookup. Knows no kernel in particular.

To find the compiled kernel, Triton classifies every argument (dtype, whether an address or a number is a multiple of 16) and
every option, which costs the host more than most of these kernels cost the device. Here the dictionary's key is made of dtypes,
addresses modulo 16, numbers and options. Under the interpreter, calls go straight to Triton.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver

_MOST = 1 << 15  # cached launches: token counts are part of the key, so distinct batches add entries
Note = Callable[..., None]  # takes the function, the grid, and the launch's arguments
_note: Note | None = None


@contextmanager
def launches_noted(note: Note) -> Iterator[None]:
    """Inside this context kernels are not launched: `note` is called instead, in all threads."""
    global _note
    _note = note
    try:
        yield
    finally:
        _note = None


def signature_of(args: Iterable[object]) -> list[object]:
    """A key at least as fine as Triton's specialisation of these arguments: numbers stay exact, which is faster than
    classifying them."""
    found: list[object] = []
    for value in args:
        kind = type(value)
        if kind is int:
            found.append(value)
        elif kind is Tensor or isinstance(value, Tensor):
            found += (value.dtype, value.data_ptr() & 15)  # type: ignore[attr-defined]
        else:
            found.append(kind)
    return found


class Kernel:
    """A jit function with Triton's own launch syntax: kernel[grid](arguments, constants and options by name). The first
    argument must be a tensor on the current device."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: dict[tuple[object, ...], tuple[CompiledKernel, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch if _note is None else partial(_note, self._function), grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
        device = args[0].get_device()
        key = (device, *signature_of(args), *named.items())
        known = self._known.get(key)
        if known is None:
            self._learn(key, self._function[grid](*args, **named), args, named)
            return
        compiled, constants = known
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        hooks: tuple[Any, Any] = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        metadata = None
        if any(getattr(hook, "calls", True) for hook in hooks):  # else nobody asks, and Triton would call empty lists of hooks
            metadata = compiled.launch_metadata(grid, stream, *args, *constants)
        else:
            hooks = None, None
        place = x, y, z, stream, compiled.function, compiled.packed_metadata
        compiled.run(*place, metadata, *hooks, *args, *constants)

    def _learn(self, key: tuple[object, ...], compiled: object, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not isinstance(compiled, CompiledKernel):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = compiled, tuple(named[name] for name in self._function.arg_names[len(args) :])
