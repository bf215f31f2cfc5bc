"""The kernels that passes over a base launch, found by running such passes on the meta device, where tensors have shapes and no
contents.

Of a pass, what a kernel is compiled for is the base's shape, the set of rank classes in it (grouped_lora/work_table.py) and
whether an adapter has dropout. As jobs end, the adapters left in a pass may be any of the task's, so each set is one of its
own. Not found here are kernels that decode a base in NF4 or fp8, which are few and short, and those of generated texts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from grouped_lora.compile_ahead import Launch, noted
from grouped_lora.work_table import NARROW, tile_width

from worker.model.arena import ROW_MULTIPLE, Slot
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Dropout, Segment
from worker.model.plain.trainer import probe
from worker.model.row_optimizer import RowUpdate

_ROWS, _TOKENS = 1024, 128  # of the arena, and of each adapter in a pass: nothing is compiled for their numbers


@dataclass(frozen=True)
class PassKind:
    """widths: the tile width of the widest adapter of each rank class in the pass, ascending; empty: the base alone, which is
    not trained."""

    widths: tuple[int, ...] = ()
    dropout: bool = False


def pass_kinds(ranks: Iterable[int], dropouts: Iterable[bool]) -> list[PassKind]:
    """Those that jobs of these ranks may share in any number, the widest first; and the memory profile's, with one small
    adapter, and the base alone. dropouts: whether jobs have dropout; a pass has it if one of its jobs does."""
    widths = sorted({tile_width(rank) for rank in ranks})
    narrow: list[tuple[int, ...]] = [(), *((width,) for width in widths if width <= NARROW)]
    wide = [width for width in widths if width > NARROW]
    sets = [(*one, *some) for count in range(len(wide) + 1) for some in combinations(wide, count) for one in narrow]
    found = sorted(filter(None, sets), key=lambda each: (each[-1], each), reverse=True)
    kinds = [PassKind(each, dropout) for each in found for dropout in sorted(set(dropouts))]
    return list(dict.fromkeys([*kinds, PassKind((tile_width(ROW_MULTIPLE),)), PassKind()]))


def needed_launches(source: Path, kinds: Iterable[PassKind], eight_bit: bool) -> list[Launch]:
    """One launch of each kernel of these passes and of the optimizer. source: the base's folder, of which the configuration is
    read. Raises UnsupportedModelError."""
    backbone = Backbone.without_weights(source, torch.bfloat16)
    arena = DeviceArena(backbone.targets, _ROWS, backbone.device, torch.bfloat16, eight_bit)
    trainer = DeviceTrainer(backbone, arena)
    trainer.graph_tokens = 0  # whether a pass is captured changes none of its kernels
    with noted() as launches:
        for kind in kinds:
            _run(trainer, kind)
    return launches


def _run(trainer: DeviceTrainer, kind: PassKind) -> None:
    """A step, where the pass has adapters, and a pass without a backward."""
    slots = [trainer.arena.attach(width, width) for width in kind.widths]
    adapters: list[Slot | None] = list(slots) or [None]
    segments = [segment for slot in adapters for segment in probe(_TOKENS, _TOKENS, slot)]
    trainer.evaluate(segments)
    if slots:
        dropout = Dropout(0.5, seed=0, step=0) if kind.dropout else None
        trainer.train([Segment(each.slot, each.examples, dropout=dropout) for each in segments])
        trainer.update([RowUpdate(slot, 1e-4, 0.0, 1, 1.0) for slot in slots])
    for slot in slots:
        trainer.arena.detach(slot)
