"""A base model, loaded, once on each of an executor's devices: backbone, tokenizer, arena and trainer. Knows no tasks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer

from contract.model_revision import NoWeights, revision_of
from contract.row_encoding import RowReader, TokenizerError
from contract.task_spec import Precision
from contract.wire import BaseModelRef
from worker.data.row_reader import reader_of
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.families import UnsupportedModelError
from worker.model.plain.trainer import Trainer

log = logging.getLogger(__name__)


class BaseError(ValueError):
    """The base cannot be trained on here, and another try would fail as this one did."""


@dataclass(frozen=True)
class Base:
    """One copy, on one device."""

    ref: BaseModelRef
    trainer: Trainer
    reader: RowReader

    @property
    def vocabulary(self) -> int:
        """How many tokens the base knows."""
        return self.trainer.backbone.embedding.shape[0]

    @property
    def max_positions(self) -> int:
        return self.trainer.backbone.max_positions


def load_base(ref: BaseModelRef, device: torch.device, coded: bool = False, recompute: bool = False) -> Base:
    """One copy of a base: see load_bases."""
    return load_bases(ref, [device], coded, recompute)[0]


def load_bases(
    ref: BaseModelRef, devices: Sequence[torch.device], coded: bool = False, recompute: bool = False
) -> tuple[Base, ...]:
    """Check the revision, and read the weights onto each device, one after another. Raises BaseError.

    A device that is named again gets an arena and a trainer of its own over the same frozen weights. coded: keep moments in
    8 bits. recompute: on a GPU, compute activations again in backward instead of keeping them.
    """
    source = Path(ref.source)
    try:
        found = revision_of(source)
    except (NoWeights, OSError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    if found != ref.revision:
        raise BaseError(
            f"base model {ref.name}: the weights in {source} have revision {found}, the task is pinned to {ref.revision}; "
            "bring the folder back, or register the new weights and submit again"
        )
    try:
        backbones = _backbones(source, ref.precision, devices)
        trainers = [_trainer(backbones[device], coded, recompute) for device in devices]
        reader = reader_of(AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False))
    except (UnsupportedModelError, TokenizerError, OSError, ValueError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    return tuple(Base(ref, trainer, reader) for trainer in trainers)


def _backbones(source: Path, precision: Precision, devices: Sequence[torch.device]) -> dict[torch.device, Backbone]:
    """float32 on a CPU; on a GPU bfloat16 under float32 adapters."""
    dtype = torch.float32 if devices[0].type == "cpu" else torch.bfloat16
    backbones = {device: Backbone.load(source, device, dtype, precision) for device in dict.fromkeys(devices)}
    backbone = backbones[devices[0]]
    if devices[0].type == "cuda" and backbone.beyond_kernels:
        log.warning(
            "no fused kernel runs %s (%s): it trains by plain PyTorch, several times slower, with all activations kept",
            *(backbone.family, ", ".join(backbone.beyond_kernels)),
        )
    return backbones


def _trainer(backbone: Backbone, coded: bool, recompute: bool) -> Trainer:
    """By the fused kernels on a GPU, if they run the family. The arena grows as jobs come."""
    device = backbone.device
    if device.type == "cpu" or backbone.beyond_kernels:
        return Trainer(backbone, Arena(backbone.targets, 8, device, coded=coded))
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, 8, device, torch.bfloat16, coded), recompute)
