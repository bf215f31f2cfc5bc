"""What passes of small tasks in changing company cost: launched, captured and replayed; and what emptied caches add to it.

    python -m benchmarks.captures [--commit HASH] [--dry-run]

Llama-3.2-1B's shape, three adapters of rank 16 at batch 1, 2 and 4, each of which draws GSM8K's rows by itself; after every
STAY passes one of them changes its batch size, as where one task leaves and another joins. Each pass is timed with the device
idle before it, and waited for. The same passes run twice on new trainers: as built, where a capture leaves the caches alone if
the graphs' pool has room, and with each capture as torch.cuda.graph makes it. The second run of each is reported, in turns.
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
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_batch import BatchShape
from worker.model.cuda.device_trainer import DeviceTrainer, PassMode
from worker.model.cuda.fused_pass import PassResult
from worker.model.flat_batch import Segment

PASSES, STAY = 600, 60
AS_BUILT, EMPTIED = "as built", "caches emptied"
REPLAYED, LAUNCHED, CAPTURED = "replayed", "launched", "captured"


class Timed(DeviceTrainer):
    """Times each pass by what became of it. emptied: every capture empties the caches."""

    def __init__(self, backbone: Backbone, arena: DeviceArena, emptied: bool) -> None:
        super().__init__(backbone, arena)
        self._emptied = emptied
        self.times = defaultdict[str, list[float]](list)

    def _pool_holds(self, shape: BatchShape, mode: PassMode) -> bool:
        return not self._emptied and super()._pool_holds(shape, mode)

    def _replay(self, shape: BatchShape, host: Tensor, mode: PassMode) -> PassResult:
        before, key = len(self.captured), (shape, mode)
        kind = REPLAYED if key in self._graphs else LAUNCHED
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = super()._replay(shape, host, mode)
        torch.cuda.synchronize()
        self.times[CAPTURED if len(self.captured) > before else kind].append((time.perf_counter() - began) * 1e3)
        return result


def companies(seed: int) -> list[list[int]]:
    """The batch sizes of each pass."""
    draw, sizes, found = random.Random(seed), [1, 2, 4], []
    for number in range(PASSES):
        if number and number % STAY == 0:
            sizes[draw.randrange(len(sizes))] = draw.choice((1, 2, 4))
        found.append(list(sizes))
    return found


def arm(backbone: Backbone, emptied: bool, sizes: Sequence[Sequence[int]]) -> dict[str, Any]:
    arena = DeviceArena(backbone.targets, 64, "cuda", torch.bfloat16)
    trainer, rows = Timed(backbone, arena, emptied), Rows(LLAMA_1B.vocabulary)
    slots = [arena.attach(16, 32.0) for _ in sizes[0]]
    for slot in slots:
        arena.master[slot.used].normal_(std=0.02)
        arena.touched(slot)
    began = time.perf_counter()
    for company in sizes:
        trainer.train([Segment(slot, rows.take(size), 1 / 100) for slot, size in zip(slots, company, strict=True)])
        trainer.discard_gradients(slots)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = {kind: {"passes": len(ms), "ms": median(ms), "most_ms": max(ms)} for kind, ms in trainer.times.items()}
    return {"what": "passes in changing company", "caches": EMPTIED if emptied else AS_BUILT, "seconds": seconds, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="what the result file names, where this is no checkout")
    parser.add_argument("--dry-run", action="store_true", help="no gate, and no result file")
    options = parser.parse_args()
    gate = {} if options.dry_run else run_gate()
    backbone, sizes, rows = random_backbone(LLAMA_1B), companies(0), []
    for turn in range(2):
        for emptied in (True, False):
            row = arm(backbone, emptied, sizes)
            print(row, flush=True)
            if turn:  # kernels were compiled in the first
                rows.append(row)
    by = {row["caches"]: row for row in rows}
    figures = {f"{kind}_ms": by[AS_BUILT][kind]["ms"] for kind in (REPLAYED, LAUNCHED, CAPTURED)}
    figures |= {f"{kind}_ms_emptied": by[EMPTIED][kind]["ms"] for kind in (LAUNCHED, CAPTURED)}
    figures["x_seconds"] = by[EMPTIED]["seconds"] / by[AS_BUILT]["seconds"]
    print(figures)
    if not options.dry_run:
        print(write_result("captures", gate, figures, rows, options.commit))


if __name__ == "__main__":
    main()
