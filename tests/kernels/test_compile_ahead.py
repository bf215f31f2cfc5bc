"""Every kernel compiles for chips that are not here and fits in their shared memory (the long form: minutes of compiling)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
