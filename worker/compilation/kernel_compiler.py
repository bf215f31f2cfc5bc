"""Has kernels compiled in a process of their own before the loop launches them. Without it, the first pass of a kind would
compile 20 kernels and more, a second each, in the loop's thread: nobody's task on the executor would go on meanwhile.
"""

import logging
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from triton import knobs

from worker import killed_process
from worker.child_environment import without_secrets
from worker.compilation.compile_main import CompileOrder
from worker.compilation.needed_kernels import pass_kinds
from worker.parent_watchdog import dying_with_parent

log = logging.getLogger(__name__)

Wait = Callable[[Callable[[], object], Callable[[], object]], None]
_CHECK_SECONDS = 1.0
MOST_SECONDS = 600.0  # after which nobody waits for the compiler any more


class KernelCompiler:
    """Of one executor. Remembers what it compiled, of whatever base."""

    def __init__(self) -> None:
        self._ranks, self._dropouts = defaultdict[Path, set[int]](set), defaultdict[Path, set[bool]](set)
        # None: nobody waits, since another process compiled it before, or the child does not end
        self._children: dict[CompileOrder, subprocess.Popen[str] | None] = {}

    def begin(
        self, source: Path, device: torch.device, ranks: Iterable[int], dropouts: Iterable[bool], eight_bit: bool
    ) -> Wait:
        """Begin to compile what passes over the base in this folder launch that jobs of these ranks share, alone or with the
        executor's earlier ones. dropouts: whether such jobs have dropout. Nothing is begun for a CPU, without config.json,
        which loading the base then says, or where a stamp says that this host has compiled it.

        What is returned, wait(check, tell), waits for the end. Where that takes a while it calls `tell` once, and `check` again
        and again, whose exceptions it passes on. What goes wrong is logged: kernels that are not compiled ahead are compiled by
        who launches them."""
        if device.type != "cuda":
            return nothing_to_wait_for
        known, dropout = self._ranks[source], self._dropouts[source]
        known.update(ranks)
        dropout.update(dropouts)
        capability = torch.cuda.get_device_capability(device)
        order = CompileOrder(source=source, capability=capability, kinds=tuple(pass_kinds(known, dropout)), eight_bit=eight_bit)
        child = self._children.get(order)
        if order not in self._children or (child is not None and child.poll()):  # not begun yet, or in vain
            try:
                if not (source / "config.json").is_file():
                    return nothing_to_wait_for
                child = self._children[order] = None if order.stamp().exists() else _start(order)
            except OSError as error:
                _warn(str(error))
                return nothing_to_wait_for
        return partial(self._wait, order, child) if child is not None else nothing_to_wait_for

    def _wait(
        self, order: CompileOrder, child: subprocess.Popen[str], check: Callable[[], object], tell: Callable[[], object]
    ) -> None:
        until = time.monotonic() + MOST_SECONDS
        if child.poll() is None:
            tell()
        while child.poll() is None:
            check()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_CHECK_SECONDS)
            if time.monotonic() > until and not killed_process.kill(child, "a process of kernels", killed_process.SECONDS):
                self._children[order] = None
                _warn("it does not end")
                return
        if child.returncode:
            _warn(f"exit code {child.returncode}")


def _start(order: CompileOrder) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [*dying_with_parent(), sys.executable, "-m", "worker.compilation"],
        stdin=subprocess.PIPE,
        text=True,
        env=without_secrets(os.environ) | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as told:  # it has ended already, which its exit code says
        told.write(order.model_dump_json())
    return child


def _warn(why: str) -> None:
    log.warning(
        "kernels could not be compiled ahead into %s (%s): each is compiled when it is first launched, and all tasks of the "
        "executor wait for it meanwhile", knobs.cache.dir, why,
    )  # fmt: skip


def nothing_to_wait_for(check: Callable[[], object], tell: Callable[[], object]) -> None:
    return
