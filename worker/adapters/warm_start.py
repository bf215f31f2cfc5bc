"""The adapter that a task starts from: reads a PEFT folder into arena columns, checks it against base and jobs. Fetches
nothing.

Safetensors only. Refuses what PEFT can express and this worker cannot do (DoRA, rank patterns, modules saved whole, biases).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from contract.search_space import MODULES, JobConfig
from worker.adapters.peft_export import CONFIG_FILE, WEIGHTS_FILE
from worker.model.arena_layout import Layout, Target

_PREFIX = "base_model.model."
_PLAIN: dict[str, tuple[Any, ...]] = {  # settings that change what an adapter is, and their values in plain LoRA
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    "use_dora": (None, False),
    "fan_in_fan_out": (None, False),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layers_to_transform": (None, []),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "lora_bias": (None, False),
}


class WarmStartError(ValueError):
    """The adapter cannot be used as a start. The message names what is wrong with it, or with the job."""


@dataclass(frozen=True)
class StartAdapter:
    """The adapter that jobs start from. weights: float32 [rank, W], zero where it has no matrix. scale: what its
    B A x is multiplied by. sha256: over its files."""

    weights: Tensor
    rank: int
    scale: float
    modules: tuple[str, ...]
    sha256: str
    layout: Layout

    def check(self, config: JobConfig) -> None:
        """Raises WarmStartError where a job of this configuration could not hold the adapter."""
        if config.rank != self.rank:
            raise WarmStartError(
                f"has rank {self.rank}, but a job asks for rank {config.rank}; set search_space.rank to [{self.rank}]"
            )
        missing = sorted(set(self.modules) - set(config.target_modules))
        if missing:
            raise WarmStartError(
                f"has matrices for {', '.join(missing)}, which a job's target_modules leave out; "
                "name them in search_space.target_modules"
            )

    def onto(self, fresh: Tensor, scale: float) -> Tensor:
        """A job's first weights: `fresh`, float32 [rank, W], with this adapter's matrices in place, rescaled to the job's
        scale."""
        made = fresh.clone()
        own = self.layout.split(self.weights)
        for target, (a, b) in zip(self.layout.targets, self.layout.split(made).values(), strict=True):
            if target.module in self.modules:
                a.copy_(own[target.name][0])
                b.copy_(own[target.name][1] * (self.scale / scale))
        return made


def read_peft(files: Mapping[str, Path], layout: Layout) -> StartAdapter:
    """Read the files of a PEFT folder, by name. Raises WarmStartError."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in files:
            raise WarmStartError(f"has no {name}; only safetensors are read")
    try:
        config = json.loads(files[CONFIG_FILE].read_text())
        tensors = load_file(files[WEIGHTS_FILE])
    except (SafetensorError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WarmStartError(f"cannot be read: {error}") from None
    rank, scale = _numbers(config)
    weights = torch.zeros(rank, layout.width)
    views, modules = layout.split(weights), set()
    for target in layout.targets:
        names = [f"{_PREFIX}{target.name}.lora_{factor}.weight" for factor in "AB"]
        if not any(name in tensors for name in names):
            continue
        shapes = ((rank, target.in_features), (target.out_features, rank))
        for name, shape, view in zip(names, shapes, views[target.name], strict=True):
            view.copy_(_checked(tensors.pop(name, None), name, shape))
        modules.add(target.module)
    if tensors:
        raise WarmStartError(f"holds {min(tensors)}, which is no matrix of the base; was it made for another one?")
    _check_whole(layout.targets, modules, views)
    said = hashlib.sha256(b"".join(files[name].read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)))
    ordered = tuple(module for module in MODULES if module in modules)
    return StartAdapter(weights, rank, scale, ordered, said.hexdigest(), layout)


def _numbers(config: Any) -> tuple[int, float]:
    """Rank and scale of a configuration of plain LoRA. Raises WarmStartError for any other."""
    if not isinstance(config, dict):
        raise WarmStartError(f"has a {CONFIG_FILE} that is no object")
    for name, harmless in _PLAIN.items():
        if config.get(name, harmless[0]) not in harmless:
            raise WarmStartError(f"has {name} = {config[name]!r:.80} in its {CONFIG_FILE}; only plain LoRA can be gone on with")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= 256:
        raise WarmStartError(f"has r = {rank!r:.40} in its {CONFIG_FILE}; it must be a whole number from 1 to 256")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < float("inf"):
        raise WarmStartError(f"has lora_alpha = {alpha!r:.40} in its {CONFIG_FILE}; it must be a number above 0")
    return rank, alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _checked(tensor: Tensor | None, name: str, shape: tuple[int, int]) -> Tensor:
    if tensor is None:
        raise WarmStartError(f"lacks {name}")
    if tuple(tensor.shape) != shape:
        raise WarmStartError(f"holds {name} of shape {tuple(tensor.shape)}; the base and its rank ask for {shape}")
    if not torch.isfinite(tensor).all():
        raise WarmStartError(f"holds a number that is not finite in {name}")
    return tensor


def _check_whole(targets: tuple[Target, ...], modules: set[str], views: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    if not modules:
        raise WarmStartError("holds no matrix of the base")
    for target in targets:
        a, b = views[target.name]
        if target.module in modules and not (a.any() or b.any()):
            raise WarmStartError(f"lacks {target.name}, though other layers have {target.module}")
