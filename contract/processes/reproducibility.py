"""Conditional numerical reproducibility (CNR) of Intel's MKL, the BLAS of PyTorch's x86 builds, set through the environment.

Without CNR, MKL runs other code for an operand that does not start at a multiple of 64 bytes, so a product's bits depend on
where its operands lie, and one job's bits on its neighbours. Without STRICT, MKL's AVX2 code still splits a product among
threads by its number of rows (docs/NUMERICS.md). MKL reads the variable once, at the process's first product: set it before
torch is imported. Knows no torch.
"""

from collections.abc import Mapping, MutableMapping

VARIABLE = "MKL_CBWR"
_BEST_HERE = "AUTO"  # the fastest code path of this processor
_BRANCHES = {_BEST_HERE, "COMPATIBLE", "SSE4_2", "AVX", "AVX2", "AVX512", "AVX512_E1"}  # MKL accepts capitals alone


def turn_on(environment: MutableMapping[str, str]) -> None:
    """Enable CNR, unless the environment already names a branch: COMPATIBLE, say, gives the same bits on all processors, at
    half the speed."""
    branch = environment.get(VARIABLE, "").partition(",")[0]
    environment[VARIABLE] = f"{branch if branch in _BRANCHES else _BEST_HERE},STRICT"


def is_on(environment: Mapping[str, str]) -> bool:
    branch, _, how = environment.get(VARIABLE, "").partition(",")
    return branch in _BRANCHES and how == "STRICT"
