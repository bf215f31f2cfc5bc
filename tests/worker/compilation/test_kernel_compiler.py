"""Kernels are compiled in a process of their own, once, and a process that launches them finds them."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.worker.compilation.fresh_process import run, write_base
from worker.compilation import kernel_compiler
from worker.compilation.compile_main import CompileOrder as Order
from worker.compilation.kernel_compiler import KernelCompiler
from worker.compilation.needed_kernels import PassKind, pass_kinds

GPU = torch.device("cuda:0")
GONE = "raise SystemExit(3)"
HELD = "import sys; sys.stdin.read(); sys.stdin.close()"


class Said:
    """Notes what a wait tells and asks."""

    def __init__(self) -> None:
        self.told = self.checked = 0

    def tell(self) -> None:
        self.told += 1

    def check(self) -> None:
        self.checked += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """What processes were started for; each runs nothing."""
    found = list[Order]()

    def start(order: Order) -> "subprocess.Popen[str]":
        found.append(order)
        return subprocess.Popen([sys.executable, "-c", ""], text=True)

    monkeypatch.setattr(kernel_compiler, "_start", start)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    return found


def begin(compiler: KernelCompiler, base: Path, *ranks: int, dropouts: tuple[bool, ...] = (False,)) -> Said:
    said = Said()
    compiler.begin(base, GPU, ranks, dropouts, False)(said.check, said.tell)
    return said


def test_jobs_that_join_may_share_a_pass_with_those_before(tmp_path: Path, started: list[Order]) -> None:
    compiler, base = KernelCompiler(), write_base(tmp_path, "llama")
    begin(compiler, base, 16)
    begin(compiler, base, 16)
    begin(compiler, base, 128, dropouts=(True,))
    assert [set(order.kinds) for order in started] == [
        {PassKind((16,)), PassKind()},
        set(pass_kinds([16, 128], [False, True])),
    ]


def test_nothing_is_compiled_for_a_cpu_or_without_a_configuration(tmp_path: Path, started: list[Order]) -> None:
    compiler, said = KernelCompiler(), Said()
    compiler.begin(write_base(tmp_path, "llama"), torch.device("cpu"), [16], [False], False)(said.check, said.tell)
    assert begin(compiler, tmp_path / "nothing", 16).told == said.told == 0
    assert not started


@pytest.mark.parametrize("program", [GONE, "import os; os.kill(os.getpid(), 9)"])
def test_a_failure_is_said_and_fails_nobody_and_is_tried_again(
    tmp_path: Path, started: list[Order], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    compiler, base, succeeding = KernelCompiler(), write_base(tmp_path, "llama"), kernel_compiler._start
    monkeypatch.setattr(kernel_compiler, "_start", lambda order: subprocess.Popen([sys.executable, "-c", program], text=True))
    with caplog.at_level(logging.WARNING):
        begin(compiler, base, 16)
    assert "kernels could not be compiled ahead into" in caplog.text
    assert "(exit code" in caplog.text
    monkeypatch.setattr(kernel_compiler, "_start", succeeding)
    begin(compiler, base, 16)
    begin(compiler, base, 16)
    assert len(started) == 1


def test_what_the_host_does_not_let_it_do_is_said_and_fails_nobody(
    tmp_path: Path, started: list[Order], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(order: Order) -> "subprocess.Popen[str]":
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(kernel_compiler, "_start", start)
    with caplog.at_level(logging.WARNING):
        begin(KernelCompiler(), write_base(tmp_path, "llama"), 16)
    assert "Resource temporarily unavailable" in caplog.text


def test_a_process_that_has_ended_before_it_reads_is_said_and_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with caplog.at_level(logging.WARNING):
        begin(KernelCompiler(), write_base(tmp_path, "llama"), 16)
    assert "(exit code 1)" in caplog.text


def test_nobody_waits_for_ever(
    tmp_path: Path, started: list[Order], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = subprocess.Popen([sys.executable, "-c", HELD], stdin=subprocess.PIPE, text=True)
    monkeypatch.setattr(kernel_compiler, "_start", lambda order: held)
    monkeypatch.setattr(kernel_compiler, "MOST_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        begin(KernelCompiler(), write_base(tmp_path, "llama"), 16)
    assert "(exit code -9)" in caplog.text
    assert held.poll() == -9


def test_who_waits_is_told_and_may_give_up(tmp_path: Path, started: list[Order], monkeypatch: pytest.MonkeyPatch) -> None:
    children = list["subprocess.Popen[str]"]()

    def start(order: Order) -> "subprocess.Popen[str]":
        children.append(subprocess.Popen([sys.executable, "-c", HELD], stdin=subprocess.PIPE, text=True))
        return children[-1]

    monkeypatch.setattr(kernel_compiler, "_start", start)
    compiler, base, said = KernelCompiler(), write_base(tmp_path, "llama"), Said()
    wait = compiler.begin(base, GPU, [16], [False], False)
    with pytest.raises(TimeoutError, match="its lease"):
        wait(raising(TimeoutError("its lease ended")), said.tell)
    assert said.told == 1

    def end() -> None:
        said.check()
        children[0].stdin.close()  # type: ignore[union-attr]

    compiler.begin(base, GPU, [16], [False], False)(end, said.tell)
    assert (len(children), said.told, said.checked >= 1) == (1, 2, True), "the next one waits for the same process"


def raising(error: Exception) -> Callable[[], object]:
    def check() -> None:
        raise error

    return check


def test_what_one_process_compiled_others_find(tmp_path: Path, started: list[Order], monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes where nothing is interpreted: some 20 kernels are really compiled, for a Hopper."""
    base, cache = write_base(tmp_path / "base", "llama"), tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    order = Order(source=base, capability=(9, 0), kinds=tuple(pass_kinds([16], [False])), eight_bit=False)
    assert not order.stamp().exists()

    def compile_them() -> dict[str, int]:
        run("-m", "worker.compilation", given=order.model_dump_json())
        assert order.stamp().exists()
        return {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}

    compiled = compile_them()
    assert {"_swiglu_backward.cubin", "_norm_backward.cubin", "_weight_gradient.cubin", "_adamw.cubin"} <= set(compiled)
    order.stamp().unlink()
    assert compile_them() == compiled, "it found each"
    begin(KernelCompiler(), base, 16)
    assert not started, "all is there"
    begin(KernelCompiler(), base, 32)
    assert len(started) == 1
    (base / "config.json").write_text((base / "config.json").read_text().replace("192", "256"))
    assert not order.stamp().exists(), "it is not the same base any more"
