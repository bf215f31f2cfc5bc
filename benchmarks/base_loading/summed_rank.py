"""A rank of an executor that, once its part of a base is loaded, writes to the base's folder what the bytes of that add up to.

python -m benchmarks.base_loading.summed_rank DESCRIPTOR
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.base_loading.layered_base import byte_sum
from contract.messages.placement_messages import BaseModelRef
from worker.model.backbone import OnLoaded, ignore_progress
from worker.model.plain.trainer import Trainer
from worker.replicas import base_loader
from worker.replicas.base_loader import load_trainer
from worker.replicas.ranks import rank_main, rank_server, rank_start
from worker.replicas.sharding_choice import ChosenSharding


@contextmanager
def summed() -> Iterator[None]:
    """Within it executors of this process, and their ranks, write sums."""
    module = rank_start.RANK_MODULE
    base_loader.load_trainer = summed_trainer
    rank_start.RANK_MODULE = "benchmarks.base_loading.summed_rank"
    try:
        yield
    finally:
        base_loader.load_trainer, rank_start.RANK_MODULE = load_trainer, module


def summed_trainer(
    ref: BaseModelRef,
    device: torch.device,
    eight_bit: bool = False,
    memory: int | None = None,
    sharding: ChosenSharding | None = None,
    rank: int = 0,
    on_progress: OnLoaded = ignore_progress,
) -> Trainer:
    """In place of base_loader.load_trainer. The gather buffers, and so the views of them, are still zero."""
    trainer = load_trainer(ref, device, eight_bit, memory, sharding, rank, on_progress)
    sums_file(Path(ref.source), rank).write_text(str(sum(map(byte_sum, trainer.backbone.tensors()))))
    return trainer


def sums_file(folder: Path, rank: int) -> Path:
    return folder / f"sum-of-rank-{rank}"


if __name__ == "__main__":
    rank_server.load_trainer = summed_trainer
    rank_main.main()
