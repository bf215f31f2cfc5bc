"""Has kernels compiled in a process of their own before the loop launches them. Without it, the first pass of a kind would
compile 20 kernels and more, a second each, in the loop's thread: nobody's task on the executor would go on meanwhile.
"""

import logging
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from worker.compilation.compile_main import Compile
from worker.compilation.needed_kernels import pass_kinds
from worker.parent_watchdog import dying_with_parent

log = logging.getLogger(__name__)

Wait = Callable[[Callable[[], object], Callable[[], object]], None]
_CHECK_SECONDS = 1.0


class KernelCompiler:
    """Of one executor. Remembers what it compiled, of whatever base."""

    def __init__(self) -> None:
        self._ranks, self._dropouts = defaultdict[Path, set[int]](set), defaultdict[Path, set[bool]](set)
        self._children: dict[Compile, subprocess.Popen[str]] = {}

    def begin(
        self, source: Path, device: torch.device, ranks: Iterable[int], dropouts: Iterable[bool], eight_bit: bool
    ) -> Wait:
        """Begin to compile what passes over the base in this folder launch once jobs of these ranks, with and without dropout,
        share them with the executor's earlier ones. Nothing is compiled for a CPU, without a configuration, which loading
        then says, or where it was compiled on this host before.

        What is returned, wait(check, tell), waits for the end. Where that takes a while it calls `tell` once, and `check` again
        and again, whose exceptions it passes on."""
        if device.type != "cuda" or not (source / "config.json").is_file():
            return _nothing_to_wait_for
        known, dropout = self._ranks[source], self._dropouts[source]
        known.update(ranks)
        dropout.update(dropouts)
        capability = torch.cuda.get_device_capability(device)
        wanted = Compile(source=source, capability=capability, kinds=tuple(pass_kinds(known, dropout)), eight_bit=eight_bit)
        if wanted not in self._children:
            if wanted.stamp.exists():
                return _nothing_to_wait_for
            self._children[wanted] = _start(wanted)
        return partial(_wait, self._children[wanted])


def _start(wanted: Compile) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [*dying_with_parent(), sys.executable, "-m", "worker.compilation"],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert child.stdin is not None
    with child.stdin as told:
        told.write(wanted.model_dump_json())
    return child


def _wait(child: subprocess.Popen[str], check: Callable[[], object], tell: Callable[[], object]) -> None:
    if child.poll() is None:
        tell()
    while child.poll() is None:
        check()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_CHECK_SECONDS)
    if child.returncode:
        log.warning(
            "kernels could not be compiled ahead (exit code %d): each is compiled when it is first launched, and all tasks of "
            "the executor wait for it meanwhile", child.returncode,
        )  # fmt: skip


def _nothing_to_wait_for(check: Callable[[], object], tell: Callable[[], object]) -> None:
    return
