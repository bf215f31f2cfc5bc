"""The adapter that a task starts from: reads a PEFT folder into arena columns, checks it against base and jobs. Fetches
nothing.

Safetensors only. Refuses what PEFT can express and Motet cannot do: contract.messages.peft_settings says what.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from contract.job_config import MODULES, JobConfig
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE, NotPlainLora, PeftSettings
from worker.adapters.job_checkpoint import unreadable
from worker.adapters.joined_adapters import Factors, by_stored_name, parted
from worker.model.arena_layout import Layout, Target
from worker.model.tensor_file_reader import read_tensors

_PREFIX = "base_model.model."
_BLOCK = 2**20  # bytes


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
        if config.rank < self.rank:
            raise WarmStartError(
                f"has rank {self.rank}, but a job asks for rank {config.rank}; set search_space.rank to [{self.rank}]"
            )
        missing = sorted(set(self.modules) - set(config.target_modules))
        if missing:
            raise WarmStartError(
                f"has matrices for {', '.join(missing)}, which a job's target_modules leave out; "
                "name them in search_space.target_modules"
            )
        scale, most = config.plain_alpha / config.rank, torch.finfo(torch.float32).max
        if scale == 0 or self.weights.abs().max().item() * (self.scale / scale) > most:
            raise WarmStartError(
                f"is scaled by {self.scale:.6g}, and its numbers are too large for a job that scales by {scale:.6g}; "
                "set search_space.alpha nearer to the adapter's own"
            )

    def write_onto(self, fresh: Tensor, scale: float) -> None:
        """Put this adapter's matrices into a job's first weights, float32 [rank, W], rescaled to the job's scale. Ranks that
        the adapter lacks stay as they are: they do nothing at first."""
        own = self.layout.split(self.weights)
        for target, (a, b) in zip(self.layout.targets, self.layout.split(fresh).values(), strict=True):
            if target.module in self.modules:
                a[: self.rank].copy_(own[target.name][0])
                b[:, : self.rank].copy_(own[target.name][1] * (self.scale / scale))


def read_peft(files: Mapping[str, Path], layout: Layout) -> StartAdapter:
    """Read the files of a PEFT folder, by name. Raises WarmStartError, and UnreadableWeights where the disk does not give one
    back."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in files:
            raise WarmStartError(f"has no {name}; only safetensors are read")
    try:
        settings, said = PeftSettings.read(files[CONFIG_FILE].read_bytes()), _sha256(files)
        tensors = read_tensors(files[WEIGHTS_FILE], lambda name: True)
    except OSError as error:
        raise unreadable(error) from None
    except NotPlainLora as error:
        raise WarmStartError(str(error)) from None
    except ValueError as error:
        raise WarmStartError(f"cannot be read: {error}") from None
    found, matrices = dict[str, Factors](), by_stored_name(layout.targets)
    for stored_name, parts in matrices.items():
        names = [f"{_PREFIX}{stored_name}.lora_{factor}.weight" for factor in "AB"]
        if not any(name in tensors for name in names):
            continue
        rows = parts[0].out_features if parts[0].stored is None else parts[0].stored.whole
        shapes = ((settings.rank, parts[0].in_features), (rows, settings.rank))
        a, b = (_checked(tensors.pop(name, None), name, shape) for name, shape in zip(names, shapes, strict=True))
        found[stored_name] = a.float(), b.float()
    if tensors:
        raise WarmStartError(f"holds {min(tensors)}, which is no matrix of the base; was it made for another one?")
    held = [target for target in layout.targets if target.stored_name in found]
    modules = _whole_modules(layout.targets, {target.name for target in held})
    rank = settings.rank
    if any(target.stored is not None for target in layout.targets):
        own, rank = parted(found, held)
    else:
        own = {target.name: found[target.name] for target in held}
    weights = torch.zeros(rank, layout.width)
    views = layout.split(weights)
    for name, factors in own.items():
        for view, factor in zip(views[name], factors, strict=True):
            view.copy_(factor)
    ordered = tuple(module for module in MODULES if module in modules)
    return StartAdapter(weights, rank, settings.scale, ordered, said, layout)


def _sha256(files: Mapping[str, Path]) -> str:
    said = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with files[name].open("rb") as file:
            while block := file.read(_BLOCK):
                said.update(block)
    return said.hexdigest()


def _checked(tensor: Tensor | None, name: str, shape: tuple[int, int]) -> Tensor:
    if tensor is None:
        raise WarmStartError(f"lacks {name}")
    if tuple(tensor.shape) != shape:
        raise WarmStartError(f"holds {name} of shape {tuple(tensor.shape)}; the base and its rank ask for {shape}")
    if not torch.isfinite(tensor).all():
        raise WarmStartError(f"holds a number that is not finite in {name}")
    return tensor


def _whole_modules(targets: tuple[Target, ...], named: set[str]) -> set[str]:
    """The modules of the named targets. Raises WarmStartError where a layer lacks one."""
    modules = {target.module for target in targets if target.name in named}
    if not modules:
        raise WarmStartError("holds no matrix of the base")
    for target in targets:
        if target.module in modules and target.name not in named:
            raise WarmStartError(f"lacks {target.name}, though other layers have {target.module}")
    return modules
