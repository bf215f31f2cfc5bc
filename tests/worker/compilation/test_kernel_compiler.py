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
from worker.compilation.compile_main import Compile
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
def started(monkeypatch: pytest.MonkeyPatch) -> list[Compile]:
    """What processes were started for; each runs nothing."""
    found = list[Compile]()

    def start(wanted: Compile) -> "subprocess.Popen[str]":
        found.append(wanted)
        return subprocess.Popen([sys.executable, "-c", ""], text=True)

    monkeypatch.setattr(kernel_compiler, "_start", start)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    return found


def begin(compiler: KernelCompiler, base: Path, *ranks: int, dropouts: tuple[bool, ...] = (False,)) -> Said:
    said = Said()
    compiler.begin(base, GPU, ranks, dropouts, False)(said.check, said.tell)
    return said


def test_jobs_that_join_may_share_a_pass_with_those_before(tmp_path: Path, started: list[Compile]) -> None:
    compiler, base = KernelCompiler(), write_base(tmp_path, "llama")
    begin(compiler, base, 16)
    begin(compiler, base, 16)
    begin(compiler, base, 128, dropouts=(True,))
    assert [set(wanted.kinds) for wanted in started] == [
        {PassKind((16,)), PassKind()},
        set(pass_kinds([16, 128], [False, True])),
    ]


def test_nothing_is_compiled_for_a_cpu_or_without_a_configuration(tmp_path: Path, started: list[Compile]) -> None:
    compiler, said = KernelCompiler(), Said()
    compiler.begin(write_base(tmp_path, "llama"), torch.device("cpu"), [16], [False], False)(said.check, said.tell)
    assert begin(compiler, tmp_path / "nothing", 16).told == said.told == 0
    assert not started


@pytest.mark.parametrize("program", [GONE, "import os; os.kill(os.getpid(), 9)"])
def test_a_failure_is_said_and_fails_nobody(
    tmp_path: Path, started: list[Compile], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    monkeypatch.setattr(kernel_compiler, "_start", lambda wanted: subprocess.Popen([sys.executable, "-c", program], text=True))
    with caplog.at_level(logging.WARNING):
        begin(KernelCompiler(), write_base(tmp_path, "llama"), 16)
    assert "kernels could not be compiled ahead (exit code" in caplog.text


def test_who_waits_is_told_and_may_give_up(tmp_path: Path, started: list[Compile], monkeypatch: pytest.MonkeyPatch) -> None:
    children = list["subprocess.Popen[str]"]()

    def start(wanted: Compile) -> "subprocess.Popen[str]":
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


def test_what_one_process_compiled_others_find(tmp_path: Path, started: list[Compile], monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes where nothing is interpreted: some 20 kernels are really compiled, for a Hopper."""
    base, cache = write_base(tmp_path / "base", "llama"), tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    wanted = Compile(source=base, capability=(9, 0), kinds=(PassKind((16,)),), eight_bit=False)
    command = wanted.model_dump_json()
    assert not wanted.stamp.exists()
    run("-m", "worker.compilation", given=command)
    assert wanted.stamp.parent == cache
    compiled = sorted(path.name for path in cache.rglob("*.cubin"))
    assert {"_swiglu_backward.cubin", "_norm_backward.cubin", "_weight_gradient.cubin", "_adamw.cubin"} <= set(compiled)
    run("-m", "worker.compilation", given=command)
    assert sorted(path.name for path in cache.rglob("*.cubin")) == compiled, "it found each"
    compiler = KernelCompiler()
    compiler._ranks[base] = {16}
    other = wanted.model_copy(update={"kinds": tuple(pass_kinds([16], [False]))})
    begin(compiler, base, 16)
    assert started == [other], "its kinds are others"
    (base / "config.json").write_text((base / "config.json").read_text().replace("192", "256"))
    assert not wanted.stamp.exists(), "nor is it the same base any more"
