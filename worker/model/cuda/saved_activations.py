"""What a layer's forward leaves for its backward and for the layer above. Knows tensors of one flat batch; launches nothing but
a norm's backward. Legend: T tokens, D hidden.
"""

from dataclasses import dataclass

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
class SavedActivations:
    """What one layer's backward needs beside its input: h, the input of q, k and v; raw, q and k before their
    own norms, if they have any; x_mid, the residual stream between attention and MLP; h_mid, its norm; s, each group's S; the
    outputs of attention and of the MLP, if the family norms them."""

    rstd: Tensor
    h: Tensor
    qkv: Tensor
    raw: Tensor | None
    attended: Tensor
    lse: Tensor
    x_mid: Tensor
    rstd_mid: Tensor
    h_mid: Tensor
    gate_up: Tensor
    s: dict[str, Tensor | None]
    normed_o: NormedOutput | None
    normed_down: NormedOutput | None


@dataclass(frozen=True)
class SavedLayer:
    """A layer's input x [T, D] and, unless the layer is recomputed, what its backward needs."""

    x: Tensor
    saved: SavedActivations | None = None


@dataclass(frozen=True)
class PendingResidual:
    """A sum that the next norm forms in its own pass: x + y + s @ B (of o or of down), or x + the norm of y."""

    x: Tensor
    y: Tensor | None = None
    s: Tensor | None = None
    normed: NormedOutput | None = None
