"""What all layers of a stack share: sizes, and where each matrix lies in an adapter's row. Knows no tensors."""

from dataclasses import dataclass

from grouped_lora.block.swiglu import SwigluColumns

from worker.model.plain.decoder_block import BlockShape


@dataclass(frozen=True)
class StackDims:
    """columns: where A and B of each matrix start within one layer's part of an arena row, in the order that numbers the
    matrices for dropout."""

    shape: BlockShape
    hidden: int
    ffn: int
    columns: dict[str, tuple[int, int]]

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of q and of k."""
        return self.shape.heads, self.shape.key_heads

    @property
    def eps(self) -> float:
        return self.shape.eps

    @property
    def q_width(self) -> int:
        return self.shape.heads * self.shape.head_size

    @property
    def kv_width(self) -> int:
        return self.shape.key_heads * self.shape.head_size

    def a(self, *modules: str) -> tuple[int, ...]:
        return tuple(self.columns[module][0] for module in modules)

    def b(self, *modules: str) -> tuple[int, ...]:
        return tuple(self.columns[module][1] for module in modules)

    def matrix(self, layer: int, module: str) -> int:
        """Its number among all matrices of the model."""
        return layer * len(self.columns) + list(self.columns).index(module)

    def swiglu(self, layer: int) -> SwigluColumns:
        gate, up = self.b("gate_proj", "up_proj")
        down = self.columns["down_proj"][0], self.matrix(layer, "down_proj")
        return SwigluColumns(gate, up, *down, self.shape.activation)
