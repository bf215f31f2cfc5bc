"""What a remembered launch is remembered by: whatever Triton compiles apart is told apart, and all arguments arrive."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from grouped_lora.cached_launch import Kernel, signature_of
from triton import knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel, make_backend

STORE = torch.zeros(64, dtype=torch.int32)
VALUES: list[Any] = [
    *(0, 1, 2, 15, 16, 17, 32, -1, -16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31) - 1, 2**40, 2**40 + 1),
    *(1.0, 16.0, True, False, None),
    *(STORE[start:].view(dtype) for start in (0, 1, 2, 4, 8) for dtype in (torch.int32, torch.float32)),
    *(torch.zeros(8, dtype=dtype) for dtype in (torch.bfloat16, torch.float64, torch.uint8)),
]


def test_what_triton_tells_apart_is_told_apart() -> None:
    backend = make_backend(GPUTarget("cuda", 90, 32))
    theirs = [native_specialize_impl(backend, value, False, True, True) for value in VALUES]
    ours = [tuple(signature_of([value])) for value in VALUES]
    for (i, a), (j, b) in itertools.combinations(enumerate(ours), 2):
        assert a != b or theirs[i] == theirs[j], (VALUES[i], VALUES[j])
    assert signature_of([torch.zeros(3), 7, 0.5]) == signature_of([torch.ones(9, 2), 7, 2.5]), (
        "contents and shapes are none of it"
    )


class Compiled(CompiledKernel):
    """Notes its launches."""

    def __init__(self) -> None:
        self.function, self.packed_metadata, self.calls = 7, (4, 0), list[tuple[Any, ...]]()

    @property
    def run(self) -> Any:
        return lambda *args: self.calls.append(args)

    def launch_metadata(self, *args: Any) -> None:
        return None


class Function:
    """Stands for Triton's: counts what it was asked for, and hands out what it compiled."""

    arg_names = ("x", "n", "WIDE", "BN")

    def __init__(self) -> None:
        self.compiled, self.asked = Compiled(), 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def call(*args: Any, **named: Any) -> Compiled:
            self.asked += 1
            return self.compiled

        return call


def test_hooks_on_launches_are_called_and_nothing_is_asked_for_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's profilers add hooks to lists that are there, empty, without them."""
    function, metadata = Function(), {"name": "kernel"}
    kernel = Kernel(function)
    monkeypatch.setattr("grouped_lora.cached_launch.driver", SimpleNamespace(active=SimpleNamespace(get_current_stream=int)))
    monkeypatch.setattr(Compiled, "launch_metadata", lambda self, *args: metadata)
    for entered in (None, print):
        if entered is not None:
            knobs.runtime.launch_enter_hook.add(entered)
        try:
            for _ in range(2):  # the first compiles
                kernel[(1,)](STORE, 32, BN=64, WIDE=True)
        finally:
            if entered is not None:
                knobs.runtime.launch_enter_hook.remove(entered)
    plain, _, watched = function.compiled.calls
    assert plain[6:9] == (None, None, None)
    assert watched[6:9] == (metadata, knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)


def test_a_launch_is_found_by_its_classes_and_brings_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Function()
    kernel = Kernel(function)

    class Driver:
        active: Any = None
        get_current_stream = staticmethod(lambda device: 99)

    Driver.active = Driver
    monkeypatch.setattr("grouped_lora.cached_launch.driver", Driver)
    kernel[(3, 2)](STORE, 32, BN=64, WIDE=True, num_warps=4)
    assert (function.asked, function.compiled.calls) == (1, [])
    kernel[(5,)](STORE[4:], 32, BN=64, WIDE=True, num_warps=4)
    ((x, y, z, stream, *_, tensor, number, wide, block),) = function.compiled.calls
    assert (x, y, z, stream) == (5, 1, 1, 99)
    assert tensor.data_ptr() == STORE[4:].data_ptr()
    assert (number, wide, block) == (32, True, 64)
    for args, named in (
        ((STORE[1:], 32), {"BN": 64}), ((STORE, 33), {"BN": 64}), ((STORE, 1), {"BN": 64}), ((STORE, 32), {"BN": 128}),
        ((STORE.view(torch.float32), 32), {"BN": 64}),
    ):  # fmt: skip
        before = function.asked
        kernel[(5,)](*args, **named, WIDE=True, num_warps=4)
        assert function.asked == before + 1, (args, named)
    assert len(function.compiled.calls) == 1
