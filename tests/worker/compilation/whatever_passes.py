"""A program: passes of random jobs and lengths over a base without weights, and whether their kernels are among those said to
be needed. Prints what is missing, and of each base how many kernels are needed and how many were launched."""

import random
import sys
from pathlib import Path

import numpy as np
import torch
from grouped_lora.compile_ahead import noted, pretend

from worker.compilation.needed_kernels import needed_launches, pass_kinds
from worker.model.arena import ROW_MULTIPLE
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.model.flat_batch import Dropout, Segment
from worker.model.plain.trainer import probe
from worker.model.row_optimizer import RowUpdate

PASSES = 60


def rows(draw: random.Random) -> list[Example]:
    lengths = [draw.choice([2, 3, 17, 64, 129, 500]) for _ in range(draw.randint(1, 5))]
    return [Example(np.zeros(length, np.int32), np.arange(length) >= draw.randint(1, length - 1)) for length in lengths]


def check(folder: Path, seed: int, ranks: list[int], eight_bit: bool) -> None:
    draw = random.Random(seed)
    needed = {launch.key for launch in needed_launches(folder, pass_kinds(ranks, [False, True]), eight_bit)}
    backbone = Backbone.without_weights(folder, torch.bfloat16)
    trainer = DeviceTrainer(backbone, DeviceArena(backbone.targets, 4096, "meta", torch.bfloat16, eight_bit))
    trainer.graph_tokens = 700  # shorter passes are of coarser buckets; they are launched as they are before they are captured
    trainer.graphs.run = lambda shape, host, labels, mode, launcher: launcher.launch(  # type: ignore[method-assign]
        shape, host.to("meta"), labels, mode
    )
    with noted() as launches:
        small = trainer.arena.attach(ROW_MULTIPLE, ROW_MULTIPLE)  # as of the passes that measure memory
        trainer.train(probe(300, 100, small))
        trainer.arena.detach(small)
        for step in range(1, PASSES):
            slots = [trainer.arena.attach(draw.choice(ranks), 8.0) for _ in range(draw.randint(1, 6))]
            drops = draw.random() < 0.5
            jobs = [Segment(slot, rows(draw), dropout=Dropout(0.1, 0, step) if drops else None) for slot in slots]
            trainer.train(jobs, recompute=draw.random() < 0.3, shared=draw.random() < 0.5)
            trainer.evaluate([Segment(draw.choice([None, *slots]), rows(draw)) for _ in range(3)])
            trainer.update([RowUpdate(slot, 1e-3, 0.0, step, 1.0) for slot in slots])
            for slot in slots:
                trainer.arena.detach(slot)
    missing = [launch for launch in launches if launch.key not in needed]
    for launch in missing:
        print("MISSING", folder.name, launch.function.__name__, launch.grid, launch.args, launch.named)
    print(folder.name, len(needed), len(launches))


def main() -> None:
    """Arguments: the seed, then the folder, the ranks and the moments of each base."""
    pretend((9, 0))
    for folder, ranks, moments in zip(*(sys.argv[start::3] for start in (2, 3, 4)), strict=True):
        check(Path(folder), int(sys.argv[1]), [int(rank) for rank in ranks.split(",")], moments == "8bit")


main()
