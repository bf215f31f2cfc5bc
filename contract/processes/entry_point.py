"""Imports a program's entry point with the garbage collector paused. Knows no program.

Each process imports hundreds of modules, which live as long as it does. Until all are there the collector scans them again and
again and finds nothing: a sixth of the time that a process takes to start.
"""

import gc
import pkgutil
from collections.abc import Callable
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """The function `package.module:function`. No later collection scans what is imported by now, so each pauses the process
    for less."""
    gc.disable()
    try:
        return pkgutil.resolve_name(name)  # type: ignore[no-any-return]
    finally:
        gc.freeze()
        gc.enable()
