"""What all contestants compute on: one layer's frozen weights, adapters, rows of tokens, and the gradient of the output.

Knows no contestant. Legend: N tokens of all adapters, D hidden; A [r, in], B [out, r] as PEFT has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch
from grouped_lora import Span
from grouped_lora.block.sequence_table import SequenceTable, sequence_blocks
from grouped_lora.work_table import work_table
from torch import Tensor

from benchmarks.gate import long_row
from benchmarks.llama_shapes import RANKS, LlamaShape, Rows, attach, feed, random_backbone
from worker.model.arena import rows_for
from worker.model.arena_layout import GROUPS
from worker.model.backbone import Backbone
from worker.model.cuda.batches.device_batch import DeviceBatch
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer, spans_of
from worker.model.cuda.fused_pass import FusedPass
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.plain.decoder_block import BlockWeights
from worker.model.plain.rotary import RotaryTable

MODULES = tuple(module for modules in GROUPS.values() for module in modules)
LAYER = 1  # of two: the fused stack computes no gradient of the first layer's input
Factors = dict[str, tuple[Tensor, Tensor]]  # by module: A and B, or their gradients


@dataclass(frozen=True)
class CellSpec:
    """adapters of `ranks` in turn with `rows` rows each: GSM8K's, or of `row_tokens` tokens."""

    name: str
    adapters: int
    ranks: tuple[int, ...]
    rows: int
    row_tokens: int = 0


SPECS = (
    CellSpec("32 adapters of ranks 16, 32, 64, batch 1", 32, RANKS, 1),
    CellSpec("32 adapters of ranks 16, 32, 64, batch 4", 32, RANKS, 4),
    CellSpec("4 adapters of rank 16, 2,048 tokens each", 4, (16,), 4, 512),
    CellSpec("4 adapters of rank 16, 4,096 tokens each", 4, (16,), 8, 512),
)
TINY_SPECS = (
    CellSpec("5 adapters of ranks 16, 32, 64", 5, RANKS, 2, 21),
    CellSpec("4 adapters of rank 16", 4, (16,), 1, 40),
)


def two_layers(shape: LlamaShape, device: str, dtype: torch.dtype) -> Backbone:
    """A random base of this shape's width, with a small vocabulary: a layer reads no embedding."""
    base = random_backbone(replace(shape, layers=2, vocabulary=64), device=device)
    layers = tuple(
        replace(w, **{f.name: v.to(dtype) for f in fields(w) if isinstance(v := getattr(w, f.name), Tensor)})
        for w in base.layers
    )
    size = shape.head_size
    frequencies = 1.0 / 500000.0 ** (torch.arange(0, size, 2, device=device).float() / size)
    return replace(base, layers=layers, norm=base.norm.to(dtype), rotaries=(RotaryTable(frequencies, 1.0, dtype),))


class LayerCell:
    """x, dy [N, D]: the layer's input, and the gradient of its output. factors: each adapter's. row_lengths: tokens of each
    row, by adapter."""

    def __init__(self, spec: CellSpec, shape: LlamaShape, backbone: Backbone, dtype: torch.dtype) -> None:
        self.spec, self.backbone, self.dtype, self.device = spec, backbone, dtype, str(backbone.norm.device)
        torch.manual_seed(0)
        ranks = [spec.ranks[place % len(spec.ranks)] for place in range(spec.adapters)]
        self.arena = DeviceArena(backbone.targets, sum(map(rows_for, ranks)), self.device, dtype)
        trainer = DeviceTrainer(backbone, self.arena)
        segments = attach(trainer, spec.adapters, spec.ranks)
        self.segments: list[Segment] = (
            [replace(segment, examples=[long_row(spec.row_tokens, shape.vocabulary)] * spec.rows) for segment in segments]
            if spec.row_tokens
            else feed(segments, Rows(shape.vocabulary), spec.rows)
        )
        self.flat = FlatBatch.of(self.segments)
        self.grain = trainer.grain(self.flat.size)
        self.spans: tuple[Span, ...]
        self.spans, slots = spans_of(self.segments, self.flat.ranges)
        self.arena.refresh(slots)
        self.fused = FusedPass(backbone, self.arena.layout, backbone.max_positions)
        self.x, self.dy = (
            torch.randn(self.flat.size, shape.hidden, device=self.device).to(dtype) for _ in ("input", "gradient")
        )
        self.factors = [self._factors(self.arena.layered(self.arena.compute_copy)[LAYER], span) for span in self.spans]

    @property
    def weights(self) -> BlockWeights:
        return self.backbone.layers[LAYER]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Each adapter's tokens on the axis of x."""
        return self.flat.ranges

    @property
    def row_lengths(self) -> list[list[int]]:
        return [[example.length for example in segment.examples] for segment in self.segments]

    def matrices(self) -> dict[str, Tensor]:
        """The frozen matrix [out, in] of each module: rows of the layer's joined weights."""
        w, dims = self.weights, self.fused.stack.dims
        q, k, v = w.w_qkv.split([dims.q_width, dims.kv_width, dims.kv_width])
        gate, up = w.w_gate_up.chunk(2)
        return dict(zip(MODULES, (q, k, v, w.w_o, gate, up, w.w_down), strict=True))

    def gradients(self) -> list[Factors]:
        """Each adapter's dA and dB, from the arena."""
        return [self._factors(self.arena.layered(self.arena.grad)[LAYER], span) for span in self.spans]

    def _factors(self, layer: Tensor, span: Span) -> Factors:
        rows, widths = layer[span.row : span.row + span.rank], self.matrices()
        found = {}
        for module, (a, b) in self.fused.stack.dims.columns.items():
            out_features, in_features = widths[module].shape
            found[module] = rows[:, a : a + in_features].contiguous(), rows[:, b : b + out_features].t().contiguous()
        return found

    def axis(self, lengths: Sequence[int]) -> DeviceBatch:
        """A batch of sequences of these lengths end to end, without adapters."""
        bounds = np.cumsum([0, *lengths])
        positions = np.concatenate([np.arange(stop - start, dtype=np.int32) for start, stop in pairwise(bounds)])
        at = torch.from_numpy(positions).to(self.device)
        table = work_table([], int(bounds[-1]), self.device)
        return DeviceBatch(at, at, SequenceTable(torch.from_numpy(sequence_blocks(bounds)).to(self.device)), table)
