"""Every kernel compiles for chips that are not here and fits in their shared memory (the long form: minutes of compiling); and
what launches it is built with it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from grouped_lora import compile_ahead
from grouped_lora.compile_ahead import Launch

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chip", [80, 90])
def test_every_kernel_fits(chip: int) -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_ahead", "--chip", str(chip)],
        capture_output=True,
        text=True,
        env=surroundings,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"sm_{chip}: at most" in done.stdout


@pytest.mark.parametrize("has_driver", [True, False])
def test_a_launcher_is_built_with_each_kernel_where_it_can_be_linked(monkeypatch: pytest.MonkeyPatch, has_driver: bool) -> None:
    """Before 3.7 Triton builds one where its class is called."""
    built = list[tuple[object, object]]()
    monkeypatch.setattr(compile_ahead, "_has_cuda_driver", lambda: has_driver)
    monkeypatch.setattr(compile_ahead, "CudaUtils", object)
    monkeypatch.setattr(compile_ahead, "CudaLauncher", lambda source, metadata: built.append((source, metadata)))
    monkeypatch.setattr(compile_ahead, "driver", SimpleNamespace(active=compile_ahead._NoDriver((9, 0))))
    kernel = SimpleNamespace(src="source", metadata="metadata")
    assert Launch(SimpleNamespace(run=lambda **_: kernel), (1,), (), {}).compile() is kernel
    assert built == ([("source", "metadata")] if has_driver else [])
