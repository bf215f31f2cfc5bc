"""A base and a LoRA adapter merged: W + scale B A, summed in float32 and rounded to bf16. Writes safetensors; stores nothing.

Shards are laid out from the shapes alone, so that a merge that begins anew writes the same files. A shard is written tensor by
tensor: memory holds one of them, whatever the size of the base. The sum has the bits of PEFT's merge_and_unload in float32,
rounded to bf16; a base in other numbers than bf16 is rounded as well.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contract.messages.placement_messages import SMALL_FILES, TEMPLATES
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.adapters.joined_adapters import by_stored_name, joined
from worker.adapters.warm_start import WarmStartError, read_peft
from worker.model.arena_layout import Layout
from worker.model.backbone import targets_of
from worker.model.base_weight_reader import INDEX, WHOLE, Weights, in_folder, shapes_of
from worker.model.config_reader import read_config
from worker.model.families import UnsupportedModelError, family_of
from worker.model.joined_matrices import stored_shapes

SHARD_BYTES = 5 * 10**9  # as save_pretrained has it, so that tools find files of the size that they know
CONFIG = "config.json"
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# of a base's folder, taken over as they are: what tokenises, how texts are generated, and what the base's owner asks to pass on
BESIDE = (
    *(name for name in SMALL_FILES if name != CONFIG),
    *("vocab.json", "merges.txt", "chat_template.json"),
)
_BF16_BYTES = 2


class MergeError(ValueError):
    """Base and adapter cannot be merged, and another try would fail the same way."""


@dataclass(frozen=True)
class Shard:
    """A safetensors file to be written: the names of its tensors, in order."""

    name: str
    tensors: tuple[str, ...]


class MergedModel:
    """`base`: a model folder. `adapter`: the files of a PEFT folder, by name. Raises MergeError where they do not fit, and
    UnreadableWeights where the disk does not give the adapter's back."""

    def __init__(self, base: Path, adapter: Mapping[str, Path], shard_bytes: int = SHARD_BYTES) -> None:
        self._base = base
        try:
            config = read_config(base)
            family = family_of(config)
            self._shapes = dict(sorted(stored_shapes(config, shapes_of(family, config)).items()))
            self._weights = Weights(in_folder(base), self._shapes)
            start = read_peft(adapter, Layout(targets_of(config)))
        except (UnsupportedModelError, OSError) as error:
            raise MergeError(f"the base: {error}") from None
        except WarmStartError as error:
            raise MergeError(f"the adapter {error}") from None
        self._scale = start.scale
        halves = start.layout.split(start.weights)
        targets = [target for target in start.layout.targets if target.module in start.modules]
        self._added = {
            f"{name}.weight": joined(parts, halves, start.rank, len(parts)) if parts[0].stored is not None else halves[name]
            for name, parts in by_stored_name(targets).items()
        }
        self.shards = _divided(self._shapes, shard_bytes)

    def write(self, shard: Shard, path: Path, check: Callable[[], None]) -> None:
        """Write a shard. `check` is called before each tensor, and may raise. Raises OSError, UnreadableWeights for weights of
        the base that cannot be read, and MergeError for those that are not finite."""
        with path.open("wb") as file:
            file.write(_header({name: self._shapes[name] for name in shard.tensors}))
            for name in shard.tensors:
                check()
                file.write(self._tensor(name).contiguous().view(torch.uint8).numpy().data)

    def texts(self) -> dict[str, bytes]:
        """The files beside the shards, by name: configuration, the index of several shards, the tokenizer's, the licence.
        Raises OSError, and MergeError where one of the base's cannot be read."""
        found = {name: (self._base / name).read_bytes() for name in BESIDE if (self._base / name).is_file()}
        if named_templates := sorted((self._base / TEMPLATES).glob("*.jinja")):
            # a merged model has no folders, so all are listed where transformers reads them without the files
            texts = {file.stem: _text(f"{TEMPLATES}/{file.name}", file.read_bytes()) for file in named_templates}
            if TEMPLATE in found:
                texts["default"] = _text(TEMPLATE, found.pop(TEMPLATE))
            said = _object(TOKENIZER_CONFIG, found.get(TOKENIZER_CONFIG, b"{}"))
            listed = [{"name": name, "template": text} for name, text in texts.items()]
            found[TOKENIZER_CONFIG] = _json(said | {"chat_template": listed})
        config = _object(CONFIG, (self._base / CONFIG).read_bytes())
        named = [name for name in ("dtype", "torch_dtype") if name in config] or ["torch_dtype"]
        found[CONFIG] = _json(config | dict.fromkeys(named, "bfloat16"))
        if len(self.shards) > 1:
            numbers = sum(math.prod(shape) for shape in self._shapes.values())
            where = {name: shard.name for shard in self.shards for name in shard.tensors}
            found[INDEX] = _json(
                {"metadata": {"total_parameters": numbers, "total_size": _BF16_BYTES * numbers}, "weight_map": where}
            )
        return found

    def _tensor(self, name: str) -> Tensor:
        try:
            weight = self._weights[name]
        except UnsupportedModelError as error:  # its headers were read before
            raise UnreadableWeights(f"the base: {error}") from None
        if name in self._added:
            a_RK, b_NR = self._added[name]
            weight = (b_NR.contiguous() @ a_RK.contiguous()).mul_(self._scale).add_(weight)  # in place: one in float32 is held
        merged = weight.to(torch.bfloat16)
        if not torch.isfinite(merged).all():
            raise MergeError(f"{name} is not finite once it is merged; the adapter's weights are too large for bf16")
        return merged


def _bytes(shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _BF16_BYTES


def _divided(shapes: Mapping[str, tuple[int, ...]], most: int) -> tuple[Shard, ...]:
    """Fill shards in order, up to `most` bytes each; a tensor that is larger has one of its own."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if parts[-1] and size + _bytes(shape) > most:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += _bytes(shape)
    if len(parts) == 1:
        return (Shard(WHOLE, tuple(parts[0])),)
    return tuple(Shard(f"model-{i:05d}-of-{len(parts):05d}.safetensors", tuple(part)) for i, part in enumerate(parts, 1))


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """What a safetensors file begins with: the header's length in 8 bytes, and the header, padded to a multiple of 8."""
    said: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        said[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + _bytes(shape)]}
        offset += _bytes(shape)
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MergeError(f"the base: {name} is not UTF-8: {error}") from None


def _object(name: str, content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(_text(name, content))
    except json.JSONDecodeError as error:
        raise MergeError(f"the base: {name} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise MergeError(f"the base: {name} is no JSON object")
    return said


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
