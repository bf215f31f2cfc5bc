"""How one arena row is divided among the target matrices. Numbers only: knows no tensors' values and no adapters.

A row holds, layer by layer, the four groups of matrices that read the same input. Within a group come the A of every matrix
(one row of A each), then the B of every matrix (one column of B each):

    | A_q A_k A_v | B_q B_k B_v | A_o | B_o | A_gate A_up | B_gate B_up | A_down | B_down |

Every A and B starts on a multiple of 16 columns, so that its alignment never depends on the row an adapter got.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from grouped_lora import Group, Part
from torch import Tensor

from contract.job_config import MODULES

ALIGN = 16  # columns: 64 bytes of float32
# Read group after group, these are the contract's MODULES in order; dropout numbers a layer's matrices by it.
GROUPS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Where a matrix stands in a larger one of the base's files. name: that one's path in the transformers model. first, order:
    its first row there, and which of the rows from there on ours are; None: they have its order. whole: rows of the larger."""

    name: str
    first: int
    whole: int
    order: tuple[int, ...] | None = None

    def places(self, count: int) -> Tensor:
        """The larger one's rows that our `count` rows are, int64."""
        return self.first + (torch.arange(count) if self.order is None else torch.tensor(self.order))


@dataclass(frozen=True, slots=True)
class Target:
    """One matrix that adapters change. `name` is its path in the transformers model, `module` the last part of it. stored: of
    one that is a part of a larger there."""

    name: str
    layer: int
    module: str
    in_features: int
    out_features: int
    stored: StoredRows | None = None

    @property
    def stored_name(self) -> str:
        """The path in the transformers model of the matrix that it is, or is a part of."""
        return self.name if self.stored is None else self.stored.name


class Columns(NamedTuple):
    """First columns of a target's A and B in an arena row."""

    a: int
    b: int


def aligned(columns: int) -> int:
    return -(-columns // ALIGN) * ALIGN


class Layout:
    """The columns of every target, and the groups of every layer, for one list of targets."""

    def __init__(self, targets: Iterable[Target]) -> None:
        self.targets = tuple(targets)
        self.columns: dict[str, Columns] = {}
        self.layers: list[dict[str, Group]] = []
        by_layer: dict[int, dict[str, Target]] = {}
        for target in self.targets:
            by_layer.setdefault(target.layer, {})[target.module] = target
        self.width = 0
        for layer in range(len(by_layer)):
            groups = {}
            for name, modules in GROUPS.items():
                groups[name] = self._place(
                    [by_layer[layer][module] for module in modules], layer * len(MODULES) + MODULES.index(modules[0])
                )
            self.layers.append(groups)

    @property
    def state_bytes(self) -> int:
        """Of one rank of an adapter: its weights and their two moments, float32."""
        return 3 * 4 * self.width

    def _place(self, members: list[Target], matrix: int) -> Group:
        in_features = members[0].in_features
        start, pitch = self.width, aligned(in_features)
        cursor = start + pitch * len(members)
        parts, y = [], 0
        for place, target in enumerate(members):
            parts.append(Part(b=cursor, y=y, width=target.out_features, matrix=matrix + place))
            self.columns[target.name] = Columns(start + place * pitch, cursor)
            cursor += aligned(target.out_features)
            y += target.out_features
        self.width = cursor
        return Group(a=start, pitch=pitch, in_features=in_features, parts=tuple(parts))

    def split(self, rows_RW: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Views of an adapter's rows as {target name: (A [r, in], B [out, r])}, as PEFT names and shapes them."""
        views = {}
        for target in self.targets:
            a, b = self.columns[target.name]
            views[target.name] = (rows_RW[:, a : a + target.in_features], rows_RW[:, b : b + target.out_features].t())
        return views
