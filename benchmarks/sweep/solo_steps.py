"""Our own trainer with one job at a time, at each batch size and rank: steps whose pass, but for its head, and update are
captured CUDA graphs.

What packing and early exit gain over the same kernels without either. It favours the job alone: its graphs are captured before
they are timed, no loss is read, and nothing is evaluated, loaded or stored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from grouped_lora.optimizer.adamw import RowTable, adamw

from benchmarks.pass_timing import new_trainer
from benchmarks.result_file import in_turns
from worker.model.arena import Slot
from worker.model.backbone import Backbone
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.row_optimizer import BETAS, EPS, RowUpdate

SOLO = "ours, one job after another, graphed"
STEPS = 16  # different batches per cell


def solo_rows(
    backbone: Backbone, examples: Sequence[Example], batch_sizes: Sequence[int], ranks: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """One row per batch size and rank: milliseconds of STEPS consecutive steps of one job over the first of these rows."""
    trainer = new_trainer(backbone, max(ranks))
    for size in batch_sizes:
        batches = [list(examples[place * size : (place + 1) * size]) for place in range(STEPS)]
        for rank in ranks:
            yield _row(trainer, batches, rank)


def _row(trainer: DeviceTrainer, batches: Sequence[Sequence[Example]], rank: int) -> dict[str, Any]:
    arena = trainer.arena
    slot = arena.attach(rank, 2.0 * rank)
    arena.master[slot.used].normal_(std=0.02)
    arena.touched(slot)
    segments = [[Segment(slot, batch, 1 / sum(example.labels for example in batch))] for batch in batches]
    update = graphed_update(trainer, RowUpdate(slot, 1e-4, 0.01, 3, 1.0))

    def steps() -> None:
        for segment in segments:
            trainer.train(segment)
            update()

    for _ in range(CAPTURE_AFTER):
        steps()
    median, least, most = in_turns({SOLO: steps}, rounds=1)[SOLO]
    graphs = len(trainer.captured)
    trainer.graphs.forget()
    arena.detach(slot)
    return {
        "what": SOLO, "batch": len(batches[0]), "rank": rank, "steps": len(batches), "ms": median, "least_ms": least,
        "most_ms": most, "tokens": sum(example.length for batch in batches for example in batch), "graphs": graphs,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def graphed_update(trainer: DeviceTrainer, update: RowUpdate) -> Callable[[], None]:
    """An adapter's clip and AdamW as one captured graph that reads its rates at each call, as a step's pass does its batch.
    Changes the adapter twice before it returns."""
    arena, slot, device = trainer.arena, update.slot, trainer.backbone.device
    rows = torch.arange(slot.row, slot.row + slot.rank, device=device, dtype=torch.int32)
    adapter_of_row, firsts = torch.zeros_like(rows), torch.tensor([0, slot.rank], device=device, dtype=torch.int32)
    corrections = [1 - BETAS[0] ** update.step, 1 - BETAS[1] ** update.step]
    host = torch.tensor([[update.learning_rate, update.weight_decay, *corrections, update.max_grad_norm]])
    host = host.pin_memory() if device.type == "cuda" else host
    rates = host.to(device)
    master, compute_copy, *moments = (
        arena.layered(buffer) for buffer in (arena.master, arena.compute_copy, *arena.moments.buffers)
    )
    table = RowTable(rows, adapter_of_row, firsts, rates)

    def launch() -> torch.Tensor:
        return adamw(master, arena.gradient, tuple(moments), compute_copy, table, BETAS, EPS)

    arena.clear_gradient(slot)
    launch()  # compiles its kernels
    graphs = CapturedGraphs[str, torch.Tensor](device, 1)
    graphs.capture("update", rates, launch, launch)

    return _GraphedUpdate(graphs, host, table, arena, slot)


@dataclass(frozen=True)
class _GraphedUpdate:
    """table: read by the graph by address, so it lives as long."""

    graphs: CapturedGraphs[str, torch.Tensor]
    host: torch.Tensor
    table: RowTable
    arena: DeviceArena
    slot: Slot

    def __call__(self) -> None:
        self.graphs.replay("update", self.host)
        self.arena.slots_with_gradient.discard(self.slot)
