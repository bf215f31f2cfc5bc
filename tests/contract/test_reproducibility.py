"""MKL's conditional numerical reproducibility: turned on whatever the caller's environment says, and believed by MKL."""

import os
import subprocess
import sys

import pytest

from contract.processes import reproducibility


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (None, "AUTO,STRICT"),
        ("", "AUTO,STRICT"),
        ("AUTO", "AUTO,STRICT"),
        ("COMPATIBLE", "COMPATIBLE,STRICT"),
        ("AVX2,STRICT", "AVX2,STRICT"),
        ("avx2,strict", "AUTO,STRICT"),
        ("OFF", "AUTO,STRICT"),
    ],
)
def test_it_is_turned_on_and_a_branch_that_was_chosen_is_kept(said: str | None, becomes: str) -> None:
    environment = {} if said is None else {"MKL_CBWR": said}
    assert reproducibility.is_on(environment) == (said == becomes)
    reproducibility.turn_on(environment)
    assert environment == {"MKL_CBWR": becomes}
    assert reproducibility.is_on(environment)


@pytest.mark.parametrize("module", ["benchmarks.result_file", "tests.conftest"])
def test_a_process_of_ours_multiplies_with_it(module: str) -> None:
    """MKL itself says in which mode it took its first product."""
    program = f"import {module}, torch; torch.ones(9, 9) @ torch.ones(9, 9)"
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"} | {"MKL_VERBOSE": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "SGEMM" in ran.stdout
    assert "CNR:AUTO,STRICT" in ran.stdout
