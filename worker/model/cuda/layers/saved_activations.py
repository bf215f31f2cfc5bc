"""What a layer's forward leaves for its backward and for the layer above. Knows tensors of one flat batch; launches nothing but
a norm's backward. Legend: T tokens, D hidden.
"""

from dataclasses import dataclass
from typing import NamedTuple

from grouped_lora.block.residual_norm import norm_backward
from grouped_lora.work_table import WorkTable
from torch import Tensor


@dataclass(frozen=True)
class NormedOutput:
    """The output y [T, D] of o or of down, its adapters' part included, where it is normed before it is added: its rows' 1 /
    rms, and the norm's weight."""

    y: Tensor
    rstd: Tensor
    weight: Tensor

    def backward(self, dx: Tensor, table: WorkTable) -> Tensor:
        """The gradient of y, from that of the sum."""
        return norm_backward(dx, None, None, dx, (), self.y, self.rstd, self.weight, None, table)


@dataclass(frozen=True)
class SavedAttention:
    """What the backward of a layer's attention needs beside the layer's input: h, the input of q, k and v, and their S; raw, q
    and k before their own norms, if they have any; attended, attention's output, and its log-sum-exp."""

    rstd: Tensor
    h: Tensor
    s: Tensor | None
    qkv: Tensor
    raw: Tensor | None
    attended: Tensor
    lse: Tensor


@dataclass(frozen=True)
class SavedPositionWise:
    """What the backward of a layer's part behind attention needs: attended, the input of o; x_mid, the residual stream between
    o and the MLP; h_mid, its norm; each S; the outputs of o and of the MLP, if the family norms them."""

    attended: Tensor
    s_o: Tensor | None
    x_mid: Tensor
    rstd_mid: Tensor
    h_mid: Tensor
    s_gate_up: Tensor | None
    gate_up: Tensor
    s_down: Tensor | None
    normed_o: NormedOutput | None
    normed_down: NormedOutput | None


@dataclass(frozen=True)
class SavedLayer:
    """A layer's input x [T, D] and, unless they are recomputed, what its two parts' backward needs. The last layer's
    position-wise part is the label tail's."""

    x: Tensor
    attention: SavedAttention | None = None
    position_wise: SavedPositionWise | None = None


@dataclass(frozen=True)
class PendingResidual:
    """A sum that the next norm forms in its own pass: x + y + s @ B (of o or of down), or x + the norm of y."""

    x: Tensor
    y: Tensor | None = None
    s: Tensor | None = None
    normed: NormedOutput | None = None


class AttentionOutput(NamedTuple):
    """What a layer's position-wise part reads: the layer's input x [T, D], and attention's output attended [T, Hq d]."""

    x: Tensor
    attended: Tensor


class AttentionOutputGradient(NamedTuple):
    """dx [T, D]: of the layer's input, past attention. dout [T, Hq d]: of attention's output through the frozen o; ds [T, 1,
    rank class]: of o's S, from which its adapters' part is formed where `dout` is read; None without adapters."""

    dx: Tensor
    dout: Tensor
    ds: Tensor | None


class Hidden(NamedTuple):
    """The final hidden states [T, D], or their gradient."""

    h: Tensor
