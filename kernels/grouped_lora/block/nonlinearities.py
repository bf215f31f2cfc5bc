"""Nonlinear functions inside a kernel, in fp32: the soft cap, and the gate of an MLP with its gradients. Knows no memory.

silu(x) = x sigmoid(x), and gelu by tanh (Hendrycks & Gimpel 2016, section 2) is x sigmoid(2 u), u = root(2 / pi) (x + 0.044715
x^3): both are x sigmoid(z), and differ in z alone.
"""

import triton
import triton.language as tl

from grouped_lora.approximations import reciprocal

# What the kernels run, by its name in transformers, and whether it is gelu.
GATES = {"silu": False, "gelu_pytorch_tanh": True}

_TWO_ROOTS = tl.constexpr(2 * (2 / 3.141592653589793) ** 0.5)
_CUBE = tl.constexpr(0.044715)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return reciprocal(1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def soft_capped(x, cap):
    """cap tanh(x / cap). Its slope is 1 - (soft_capped / cap)^2. Without overflow: cap where e^2x is infinite, -cap where 0."""
    return cap - 2.0 * cap / (1.0 + tl.exp(2.0 * x / cap))


@triton.jit
def _argument(x, GELU: tl.constexpr):
    """z of x sigmoid(z)."""
    if GELU:
        return x * (1.0 + _CUBE * x * x) * _TWO_ROOTS
    else:
        return x


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """act(gate) * up."""
    return gate * sigmoid(_argument(gate, GELU)) * up


@triton.jit
def gated_gradients(gate, up, dact, GELU: tl.constexpr):
    """act(gate) * up, and the gradients of gate and up from dact."""
    share = sigmoid(_argument(gate, GELU))
    value = gate * share
    bend = value * (1.0 - share)  # times the derivative of z
    if GELU:
        bend *= (1.0 + 3.0 * _CUBE * gate * gate) * _TWO_ROOTS
    return value * up, dact * up * (share + bend), dact * value
