"""Bases of a Llama shape whose weights are drawn on the device instead of read, under the example base's tokenizer. They
replace what an executor's first process and its ranks load; nothing else of an executor is changed. Measures nothing.

    python -m benchmarks.drawn_base DESCRIPTOR

is a rank of such an executor (worker.replicas.ranks), for the shape that the base's name says.
"""

from concurrent.futures import Future
from dataclasses import replace

import torch
from transformers import AutoTokenizer

from benchmarks.llama_shapes import LLAMA_1B, LLAMA_8B, LlamaShape, random_backbone
from benchmarks.sweep.random_base import TOKENIZER
from contract.messages.placement_messages import BaseModelRef
from worker.data.row_reader import reader_of
from worker.model.arena import Arena
from worker.model.backbone import OnLoaded, ignore_progress
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.plain.trainer import Trainer
from worker.replicas.base_loader import DeviceBase
from worker.replicas.ranks import rank_group, rank_main, rank_server, rank_start

SHAPES = {"1B": LLAMA_1B, "8B": LLAMA_8B, "tiny": LlamaShape(1, 64, 96, 2, 1, 32, 16384, True)}  # the last for tests
POSITIONS = 131072


def install() -> None:
    """From now on executors of this process, and their ranks, draw their bases."""
    rank_group.load_base = drawn_base
    rank_start.RANK_MODULE = "benchmarks.drawn_base"


def drawn_base(
    ref: BaseModelRef,
    device: torch.device,
    eight_bit: bool = False,
    memory: int | None = None,
    sharding: None = None,
    on_progress: OnLoaded = ignore_progress,
) -> DeviceBase:
    """In place of base_loader.load_base."""
    trainer, checked = drawn_trainer(ref, device, eight_bit, memory), Future[None]()
    checked.set_result(None)  # there are no files
    return DeviceBase(ref, trainer, reader_of(AutoTokenizer.from_pretrained(TOKENIZER, local_files_only=True)), checked)


def drawn_trainer(
    ref: BaseModelRef,
    device: torch.device,
    eight_bit: bool = False,
    memory: int | None = None,
    sharding: None = None,
    rank: int = 0,
    on_progress: OnLoaded = ignore_progress,
) -> Trainer:
    """In place of base_loader.load_trainer. The same numbers on every device of a kind."""
    backbone = replace(random_backbone(SHAPES[ref.name], device=str(device)), max_positions=POSITIONS)
    if device.type == "cpu":
        return Trainer(backbone, Arena(backbone.targets, 8, eight_bit=eight_bit))
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, 8, device, torch.bfloat16, eight_bit))


if __name__ == "__main__":
    rank_server.load_trainer = drawn_trainer
    rank_main.main()
