"""Rotary position embedding (Su et al. 2021). Knows no sequences and no gradients: rotating by -sin undoes rotating by sin."""

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.model.families import UnsupportedModelError

TABLE_STEP = 1024  # positions are tabulated in blocks of one size, so that a longer table never changes an entry's bits


class RotaryTable:
    """cos and sin of every position requested so far; grows on demand. Thread-safe. unturned: pairs of a head's numbers that
    keep their values, behind those that turn."""

    def __init__(self, inv_freq: Tensor, scaling: float, dtype: torch.dtype, unturned: int = 0) -> None:
        self._inv_freq, self._scaling, self._unturned = inv_freq.float(), scaling, unturned
        empty = torch.empty(0, inv_freq.shape[0] + unturned, dtype=dtype, device=inv_freq.device)
        self._known = empty, empty.clone()

    @classmethod
    def of(cls, config: PreTrainedConfig, head_size: int, kind: str, like: Tensor, turned: int) -> "RotaryTable":
        """The table of the layers of a kind ("" where all share one), on the device and in the dtype of `like`. turned: how
        many of a head's numbers turn. Raises UnsupportedModelError."""
        parameters = config.rope_parameters[kind] if kind else config.rope_parameters
        try:
            if parameters["rope_type"] == "default":
                halves = torch.arange(0, turned, 2, dtype=torch.float32)
                frequencies, scaling = 1.0 / parameters["rope_theta"] ** (halves / turned), 1.0
            else:
                frequencies, scaling = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, layer_type=kind or None)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"rope_parameters {parameters} say no angles: {error}") from None
        if 2 * len(frequencies) != turned or not torch.isfinite(frequencies).all():
            raise UnsupportedModelError(
                f"rope_parameters {parameters} are not supported; what works: a finite angle for every pair of a head's "
                f"{turned} numbers"
            )
        return cls(frequencies.to(like.device), scaling, like.dtype, (head_size - turned) // 2)

    def table(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of positions 0 to `positions` - 1, [positions, D / 2]."""
        cos, sin = self._known
        while cos.shape[0] < positions:
            cos, sin = self._known = self._extended(cos, sin)
        return cos[:positions], sin[:positions]

    def _extended(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        start = cos.shape[0]
        places = torch.arange(start, start + TABLE_STEP, dtype=torch.float32, device=self._inv_freq.device)
        angles = torch.outer(places, self._inv_freq)
        more = ((angles.cos() * self._scaling).to(cos.dtype), (angles.sin() * self._scaling).to(sin.dtype))
        if self._unturned:
            kept = more[0].new_ones(TABLE_STEP, self._unturned)
            more = torch.cat([more[0], kept], 1), torch.cat([more[1], torch.zeros_like(kept)], 1)
        return torch.cat([cos, more[0]]), torch.cat([sin, more[1]])


def apply_rotary(x_THD: Tensor, cos: Tensor, sin: Tensor, out: Tensor, back: bool = False) -> None:
    """Write x with every head's pairs (i, i + D/2) rotated by the row's angle to `out`; cos and sin are [T, 1, D / 2].

    Products and sums are separate calls on purpose: a fused one rounds differently in its vectorised and its scalar part, and
    which part an element falls in depends on the size of the call.
    """
    half = x_THD.shape[-1] // 2
    left, right = x_THD[..., :half], x_THD[..., half:]
    out_left, out_right = out[..., :half], out[..., half:]
    torch.mul(left, cos, out=out_left)
    torch.mul(right, cos, out=out_right)
    if back:
        out_left.add_(right * sin)
        out_right.sub_(left * sin)
    else:
        out_left.sub_(right * sin)
        out_right.add_(left * sin)
