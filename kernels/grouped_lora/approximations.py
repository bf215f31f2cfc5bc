"""Functions of one hardware instruction each, in fp32, whose results' last bits vary: 2 units in the last place at most.

Triton's own keep denormal numbers, in two to seven more instructions a number; these flush them to zero. So they are for values
that are added to larger ones, or rounded to fewer bits. The interpreter knows no assembly, and takes the exact functions.
"""

import triton
import triton.language as tl

from grouped_lora.tiles import WIDEN


@triton.jit
def power_of_two(x):
    """2^x."""
    if WIDEN:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


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
