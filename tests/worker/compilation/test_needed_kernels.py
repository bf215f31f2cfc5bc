"""Which kernels are compiled ahead: all that passes of any length, of any of the jobs, launch."""

import random
from itertools import chain
from pathlib import Path

from tests.worker.compilation.fresh_process import run, write_base
from worker.compilation.needed_kernels import PassKind, pass_kinds

SMALL = PassKind((16,))  # the memory profile's


def test_any_of_the_jobs_may_be_left_in_a_pass() -> None:
    """A class's launch is as wide as its widest adapter: narrow widths exclude each other, wide classes do not."""
    assert pass_kinds([8, 16, 24, 64], [False]) == [PassKind((64,)), PassKind((32,)), SMALL, PassKind()]
    assert {kind.widths for kind in pass_kinds([16, 128, 250], [False])} == {
        (16, 128, 256), (16, 256), (128, 256), (256,), (16, 128), (128,), (16,), (),
    }  # fmt: skip
    assert pass_kinds([32], [True]) == [PassKind((32,), True), SMALL, PassKind()]
    assert pass_kinds([4], [True, False]) == [SMALL, PassKind((16,), True), PassKind()]
    assert pass_kinds([], []) == [SMALL, PassKind()], "of a base that is only asked"


def test_no_pass_launches_another_kernel(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    cases = {"llama": ("8,16,64", "fp32"), "qwen3": ("32", "8bit"), "gemma2": ("16,128", "fp32"), "gemma3": ("24,256", "fp32")}
    bases = [(str(write_base(tmp_path / family, family)), *case) for family, case in cases.items()]
    said = run("-m", "tests.worker.compilation.whatever_passes", str(seed), *chain.from_iterable(bases))
    assert "MISSING" not in said, f"seed {seed}: {said[:3000]}"
    for family, line in zip(cases, said.splitlines(), strict=True):
        name, needed, launched = line.split()
        assert name == family
        assert 20 < int(launched) <= int(needed), line
