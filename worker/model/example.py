"""One tokenised row. By itself, without torch, so that a process that only tokenises loads none."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Example:
    """One tokenised row. tokens: int32 [t]; loss_mask: bool [t], True where the token is a label (predicted from its left)."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.shape != self.loss_mask.shape:
            raise ValueError(f"tokens {self.tokens.shape} and loss_mask {self.loss_mask.shape} must be equal and flat")
        if len(self.loss_mask) and self.loss_mask[0]:
            raise ValueError("loss_mask[0] is set, but the first token has nothing before it to be predicted from")

    @property
    def labels(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def length(self) -> int:
        """Tokens it takes on the axis: those that a label depends on."""
        places = np.flatnonzero(self.loss_mask)
        return int(places[-1]) if len(places) else 0
