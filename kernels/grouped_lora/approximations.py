"""Functions of one or two hardware instructions, in fp32, whose results are up to 2 units in the last place off.

Triton's own keep denormal numbers, which takes up to eight; these flush them to zero. So they are for results that are added to
larger numbers or rounded to fewer bits. The interpreter knows no assembly, and takes the exact functions. (tl.exp2 is one
instruction as it is.)
"""

import triton
import triton.language as tl

from grouped_lora.tiles import WIDEN


@triton.jit
def reciprocal(x):
    """1 / x: infinite for a denormal x, 0 above 2^126."""
    if WIDEN:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def square_root(x):
    if WIDEN:
        return tl.sqrt(x)
    else:
        return tl.inline_asm_elementwise("sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
