"""A base model, loaded: its backbone, tokenizer, arena and trainer. Knows no tasks."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer

from contract.revision import NoWeights, revision_of
from contract.rows import RowReader, TokenizerError
from contract.spec import Precision
from contract.wire import BaseModelRef
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.device_arena import DeviceArena
from worker.model.device_trainer import DeviceTrainer
from worker.model.family import UnsupportedModelError
from worker.model.trainer import Trainer
from worker.rows import reader_of

log = logging.getLogger(__name__)


class BaseError(ValueError):
    """The base cannot be trained on here, and another try would fail as this one did."""


@dataclass(frozen=True)
class Base:
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
    """Check the revision and read the weights. Raises BaseError.

    coded: keep moments in 8 bits. recompute: on a GPU, compute activations again in backward instead of keeping them.
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
        trainer = _trainer(source, ref.precision, device, coded, recompute)
        reader = reader_of(AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False))
    except (UnsupportedModelError, TokenizerError, OSError, ValueError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    return Base(ref, trainer, reader)


def _trainer(source: Path, precision: Precision, device: torch.device, coded: bool, recompute: bool) -> Trainer:
    """float32 on a CPU; on a GPU bfloat16 under float32 adapters, by the fused kernels if they run the family. The arena grows
    as jobs come."""
    backbone = Backbone.load(source, device, torch.float32 if device.type == "cpu" else torch.bfloat16, precision)
    if device.type == "cuda" and backbone.beyond_kernels:
        log.warning(
            "no fused kernel runs %s (%s): it trains by plain PyTorch, several times slower, with all activations kept",
            *(backbone.family, ", ".join(backbone.beyond_kernels)),
        )
    if device.type == "cpu" or backbone.beyond_kernels:
        return Trainer(backbone, Arena(backbone.targets, 8, device, coded=coded))
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, 8, device, torch.bfloat16, coded), recompute)
