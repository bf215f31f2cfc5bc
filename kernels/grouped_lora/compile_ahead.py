"""Compiles kernels ahead of their first launch, for a GPU that this process does not use: into Triton's cache on disk, where
processes that do use it find them, with the C modules that launch them.

    pretend((9, 0))
    with noted() as launches:
        ...  # calls of this package on tensors of the meta device, whose contents do not exist
    compile_all(launches, processes=8)

What is compiled is what Triton itself makes of a launch's arguments, so both find the same entry. Knows no kernel in
particular.
"""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.compiler import CompiledKernel
from triton.runtime import driver

from grouped_lora import launch_configs
from grouped_lora.cached_launch import launches_noted

_CUDA_DRIVER = "libcuda.so.1"
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG: a fork has no command to put setpriv before


@dataclass(frozen=True)
class Launch:
    """One launch of a jit function, with its constants and options by name."""

    function: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for launches of one compiled kernel: what Triton specialises by."""
        kinds = (
            type(value) if parameter.do_not_specialize else _kind(value)
            for value, parameter in zip(self.args, self.function.params, strict=False)
        )
        return self.function, *kinds, *self.named.items()

    def compile(self) -> CompiledKernel:
        """Compile it, or find it compiled in the cache. Launches nothing."""
        made: CompiledKernel = self.function.run(*self.args, grid=self.grid, warmup=True, **self.named)
        if isinstance(driver.active, _NoDriver):
            driver.active.build_launcher(made)
        return made


def _kind(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0  # on the meta device an address is the offset in its storage
    if type(value) is int:
        return 1 if value == 1 else (value % 16 == 0, -(1 << 31) <= value < 1 << 31)
    return type(value)


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Inside this context kernels are not launched; the list has one launch of each that would be, in their order."""
    found: dict[tuple[object, ...], Launch] = {}
    launches = list[Launch]()

    def note(function: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
        launch = Launch(function, grid, args, named)
        if found.setdefault(launch.key, launch) is launch:
            launches.append(launch)

    with launches_noted(note):
        yield launches


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        return False
    return True


class _NoDriver:
    """Stands for Triton's driver in a process without a GPU of its own. utils: Triton's own, which building launchers takes;
    None where the host lacks CUDA's driver, with which they are linked: nothing can be launched there."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
        self.utils = CudaUtils() if _has_cuda_driver() else None

    def build_launcher(self, kernel: CompiledKernel) -> None:
        """Before 3.7 Triton has a C compiler build a module for the arguments' types of each kernel: 0.3 s where it is first
        launched. Later ones launch all kernels by the module of `utils`."""
        if self.utils is not None:
            CudaLauncher(kernel.src, kernel.metadata)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def pretend(capability: tuple[int, int]) -> None:
    """Have this process compile for that compute capability, by its table of launches. It can launch nothing any more."""
    launch_configs.pretend(capability[0])
    driver.set_active(_NoDriver(capability))


def compile_all(launches: list[Launch], processes: int) -> None:
    """Compile them in so many processes, forked from this one, which must have no threads at work and no GPU.

    Raises RuntimeError if a process fails, which ends at its first kernel that does not compile; what is compiled stays.
    """
    fork, parent = multiprocessing.get_context("fork"), os.getpid()
    taken = fork.Value("l", 0)

    def work() -> None:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        while os.getppid() == parent:
            with taken.get_lock():
                place = taken.value
                taken.value += 1
            if place >= len(launches):
                return
            launches[place].compile()

    workers = [fork.Process(target=work) for _ in range(min(processes, len(launches)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    codes = sorted({worker.exitcode for worker in workers if worker.exitcode})
    if codes:
        raise RuntimeError(f"processes that compile kernels ended with {codes}")
