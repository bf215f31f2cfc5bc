"""A base model, loaded: its backbone, tokenizer, arena, trainer, and what the memory can hold. Knows no tasks."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer

from contract.revision import NoWeights, revision_of
from contract.wire import BaseModelRef
from worker.model.arena import Arena
from worker.model.backbone import Backbone, UnsupportedModelError
from worker.model.trainer import Trainer
from worker.policy.admission import Capacity
from worker.profile import measure
from worker.rows import RowError, RowReader
from worker.settings import Settings

log = logging.getLogger(__name__)


class BaseError(ValueError):
    """The base cannot be trained on here, and another try would fail as this one did."""


@dataclass(frozen=True)
class Base:
    ref: BaseModelRef
    trainer: Trainer
    reader: RowReader
    capacity: Capacity

    @property
    def vocabulary(self) -> int:
        """How many tokens the base knows."""
        return self.trainer.backbone.embedding.shape[0]

    @property
    def max_positions(self) -> int:
        return self.trainer.backbone.max_positions


def load_base(ref: BaseModelRef, device: torch.device, settings: Settings) -> Base:
    """Check the revision, read the weights, measure the memory. Raises BaseError."""
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
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        backbone = Backbone.load(source, device, dtype)
        reader = RowReader(AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False))
    except (UnsupportedModelError, RowError, OSError, ValueError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    trainer = Trainer(backbone, Arena(backbone.targets, 8, device))
    capacity = measure(trainer, settings)
    model = capacity.model
    log.info(
        "base %s is loaded on %s; memory: %d MiB + %.3f MiB a token + %.2f MiB a row, of %d MiB",
        *(ref.name, device, model.fixed // 2**20, model.per_token / 2**20, model.per_row / 2**20),
        capacity.usable_bytes // 2**20,
    )
    return Base(ref, trainer, reader, capacity)
