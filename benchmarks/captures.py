"""What passes of small tasks in changing company cost: launched, captured and replayed; what is saved where larger buckets take
passes of others, and what emptied caches add.

    python -m benchmarks.captures [--commit HASH] [--dry-run]

Llama-3.2-1B's shape, three adapters of rank 16 at batch 1, 2 and 4, each of which draws GSM8K's rows by itself; after every
STAY passes one of them changes its batch size, as where one task leaves and another joins. Each pass is timed with the device
idle before it, and waited for. The same passes run twice on new trainers: as built for several tasks; each pass in a bucket of
its own, as for one task; and that with each capture as torch.cuda.graph makes it. The second run of each is reported, in turns.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, Rows, random_backbone
from benchmarks.result_file import write_result
from worker.model.backbone import Backbone
from worker.model.cuda.batches.device_batch import BatchShape
from worker.model.cuda.batches.label_batch import LabelBatch
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.fused_pass import PassResult
from worker.model.cuda.pass_graphs import MAX_GRAPHS, Launcher, PassGraphs, PassMode
from worker.model.flat_batch import Segment

PASSES, STAY = 600, 60
ARMS = AS_BUILT, OWN, EMPTIED = "as built, for several tasks", "each in its own bucket", "that, and caches emptied"
REPLAYED, LAUNCHED, CAPTURED = "replayed", "launched", "captured"


class Emptying(CapturedGraphs[tuple[BatchShape, PassMode], None]):
    """Empties the caches before each capture that is warmed up."""

    def _has_room(self) -> bool:
        return False


class Timed(PassGraphs):
    """Times each pass by what became of it. emptied: every capture empties the caches."""

    def __init__(self, trainer: DeviceTrainer, emptied: bool) -> None:
        embedding = trainer.backbone.embedding
        of = trainer.graphs
        super().__init__(embedding.device, trainer.graph_tokens, of._whole_tokens, of._widths, embedding.dtype)
        self._emptied = emptied
        if emptied:
            self._captured = Emptying(embedding.device, MAX_GRAPHS)
        self.times, self.padded = defaultdict[str, list[float]](list), 0

    def _pool_holds(self, shape: BatchShape, mode: PassMode) -> bool:
        return not self._emptied and super()._pool_holds(shape, mode)

    def waste(self, shape: BatchShape, mode: PassMode, larger: BatchShape) -> None:
        super().waste(shape, mode, larger)
        self.padded += 1

    def run(self, shape: BatchShape, host: Tensor, labels: LabelBatch, mode: PassMode, launcher: Launcher) -> PassResult:
        before, known = len(self.shapes), shape in self.shapes
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = super().run(shape, host, labels, mode, launcher)
        torch.cuda.synchronize()
        kind = CAPTURED if len(self.shapes) > before else REPLAYED if known else LAUNCHED
        self.times[kind].append((time.perf_counter() - began) * 1e3)
        return result


def companies(seed: int) -> list[list[int]]:
    """The batch sizes of each pass."""
    draw, sizes, found = random.Random(seed), [1, 2, 4], []
    for number in range(PASSES):
        if number and number % STAY == 0:
            sizes[draw.randrange(len(sizes))] = draw.choice((1, 2, 4))
        found.append(list(sizes))
    return found


def arm(backbone: Backbone, name: str, sizes: Sequence[Sequence[int]]) -> dict[str, Any]:
    arena = DeviceArena(backbone.targets, 64, "cuda", torch.bfloat16)
    trainer, rows = DeviceTrainer(backbone, arena), Rows(LLAMA_1B.vocabulary)
    trainer.graphs = timed = Timed(trainer, emptied=name == EMPTIED)
    slots = [arena.attach(16, 32.0) for _ in sizes[0]]
    for slot in slots:
        arena.master[slot.used].normal_(std=0.02)
        arena.touched(slot)
    began = time.perf_counter()
    for company in sizes:
        segments = [Segment(slot, rows.take(size), 1 / 100) for slot, size in zip(slots, company, strict=True)]
        trainer.train(segments, shared=name == AS_BUILT)
        trainer.discard_gradients(slots)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = {kind: {"passes": len(ms), "ms": median(ms), "most_ms": max(ms)} for kind, ms in timed.times.items()}
    return {"what": "passes in changing company", "arm": name, "seconds": seconds, "padded": timed.padded, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="what the result file names, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="no gate, and no result file")
    options = parser.parse_args()
    gate = {} if options.dry_run else run_gate()
    backbone, sizes, rows = random_backbone(LLAMA_1B), companies(0), []
    for turn in range(2):
        for name in ARMS:
            row = arm(backbone, name, sizes)
            print(row, flush=True)
            if turn:  # kernels were compiled in the first
                rows.append(row)
    by = {row["arm"]: row for row in rows}
    figures = {f"{kind}_ms": by[OWN][kind]["ms"] for kind in (REPLAYED, LAUNCHED, CAPTURED)}
    figures["captured_ms_emptied"] = by[EMPTIED][CAPTURED]["ms"]
    figures["x_own_bucket"] = by[OWN]["seconds"] / by[AS_BUILT]["seconds"]
    figures["x_emptied"] = by[EMPTIED]["seconds"] / by[OWN]["seconds"]
    print(figures)
    if not options.dry_run:
        print(write_result("captures", gate, figures, rows, options.commit))


if __name__ == "__main__":
    main()
