"""Value types of grouped LoRA: where an adapter's rows lie in the arena, and which tokens of the flat axis it owns.

Plain numbers only. Knows no models and no jobs, holds no tensors.

Legend of this file and of the plain path; each kernel file has its own:
  T  tokens of the flat axis          K  features a group of matrices reads
  N  features the group writes        R  rows of the arena (one per rank of an adapter)
  C  columns of the arena             P  matrices in the group (q, k, v: 3; gate, up: 2; o: 1; down: 1)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One target matrix of a group: the arena columns of its B (transposed), the output columns it writes, and its number among
    all matrices of the model (dropout's counter uses it)."""

    b: int
    y: int
    width: int
    matrix: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that read the same X. Their A matrices lie side by side in an arena row, `pitch` columns apart, from column
    `a`."""

    a: int
    pitch: int
    in_features: int
    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        """N: how many features the group writes."""
        return sum(part.width for part in self.parts)


@dataclass(frozen=True, slots=True)
class Span:
    """One adapter's tokens [start, stop) on the flat axis, and its `rank` arena rows from `row`.

    dropout: the probability that a feature of the adapter's input is dropped.
    """

    start: int
    stop: int
    row: int
    rank: int
    scale: float
    dropout: float = 0.0

    @property
    def kept_scale(self) -> float:
        """The scale of inverted dropout, scale / (1 - p): it keeps a feature's expectation equal to the input."""
        return self.scale / (1.0 - self.dropout)

    def __post_init__(self) -> None:
        if self.start < 0 or self.stop < self.start:
            raise ValueError(f"span [{self.start}, {self.stop}) is not a range of tokens")
        if self.rank < 1 or self.row < 0:
            raise ValueError(f"span has rank {self.rank} at arena row {self.row}; rank must be at least 1, row at least 0")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
