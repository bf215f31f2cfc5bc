"""An adapter of the arena under PEFT, on transformers' own model. For tests alone."""

from typing import Any

import peft
from transformers import PreTrainedConfig

from tests.worker.model import tiny
from worker.adapters.joined_adapters import by_stored_name, joined, rank_factor
from worker.model.arena import Slot
from worker.model.plain.trainer import Trainer


def under_peft(config: PreTrainedConfig, trainer: Trainer, slot: Slot) -> Any:
    """PEFT's model with the slot's weights, joined where the base's files join matrices."""
    targets = trainer.arena.layout.targets
    matrices, times = by_stored_name(targets), rank_factor(targets)
    alpha: Any = slot.scale * slot.rank * times
    modules = sorted({name.rsplit(".", 1)[-1] for name in matrices})
    asked = peft.LoraConfig(r=slot.rank * times, lora_alpha=alpha, target_modules=modules, bias="none")
    wrapped = peft.get_peft_model(tiny.model(config), asked)
    weights = trainer.arena.weights(slot)
    for name, parts in matrices.items():
        for own, value in zip(factors(wrapped, name), joined(parts, weights, slot.rank, times), strict=True):
            own.data.copy_(value)
    return wrapped


def factors(wrapped: Any, name: str) -> tuple[Any, Any]:
    """A and B of the matrix with this name in transformers."""
    module = wrapped.get_submodule(f"base_model.model.{name}")
    return module.lora_A["default"].weight, module.lora_B["default"].weight
