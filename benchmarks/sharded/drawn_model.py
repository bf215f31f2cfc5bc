"""Random weights of a shape by transformers' names, drawn on the device when they are read: nothing lies on a disk, and every
rank and every contestant reads the same numbers. Knows no ranks and no adapters."""

import zlib
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config

from benchmarks.llama_shapes import LLAMA_8B, LLAMA_70B, QWEN_32B, LlamaShape
from worker.model.base_weight_reader import EMBEDDING, HEAD, PATHS, part_bytes, pass_bytes, shapes_of
from worker.model.families import family_of
from worker.policy.base_sharding import BaseSizes

TOY = LlamaShape(4, 512, 768, 8, 4, 64, 1000, False, biased=True)
SHAPES = {"toy": TOY, "8b": LLAMA_8B, "32b": QWEN_32B, "70b": LLAMA_70B}
THETA, EPS = 500000.0, 1e-5


def config_of(shape: LlamaShape) -> PreTrainedConfig:
    made = Qwen2Config if shape.biased else LlamaConfig
    return made(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, max_position_embeddings=4096,
        rms_norm_eps=EPS, tie_word_embeddings=shape.tied, rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )  # fmt: skip


class DrawnTensors(Mapping[str, Tensor]):
    """Draws a tensor each time it is read. `items` gives shapes alone, on the meta device: whoever lists the tensors does not
    want 65 GB of them."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._shapes, self._device, self._dtype, self._seed = shapes, device, dtype, seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        drawn = torch.empty(shape, device=self._device, dtype=torch.bfloat16).normal_(0, self._scale(name), generator=generator)
        return (1 + drawn if "norm" in name else drawn).to(self._dtype)

    def _scale(self, name: str) -> float:
        shape = self._shapes[name]
        if len(shape) == 1:
            return 0.1
        if name in (EMBEDDING, HEAD):
            return 2 * shape[1] ** -0.5
        return (0.3 if "o_proj" in name or "down_proj" in name else 1.0) * shape[1] ** -0.5

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def items(self) -> ItemsView[str, Tensor]:
        return {name: torch.empty(shape, device="meta", dtype=self._dtype) for name, shape in self._shapes.items()}.items()


@dataclass(frozen=True)
class DrawnModel:
    """As Backbone.of takes a model. dtype: of the tensors; their numbers are those of bfloat16 in any."""

    shape: LlamaShape
    device: torch.device
    dtype: torch.dtype
    seed: int = 0

    @property
    def config(self) -> PreTrainedConfig:
        return config_of(self.shape)

    def state_dict(self) -> DrawnTensors:
        config = self.config
        return DrawnTensors(shapes_of(family_of(config), config), self.device, self.dtype, self.seed)

    def layer(self, index: int, module: str, kind: str = "weight") -> Tensor:
        """A weight or bias of one linear map."""
        return self.state_dict()[f"model.layers.{index}.{PATHS[module]}.{kind}"]

    def norms(self, index: int) -> tuple[Tensor, Tensor]:
        """Before attention and before the MLP."""
        tensors, prefix = self.state_dict(), f"model.layers.{index}"
        return tensors[f"{prefix}.input_layernorm.weight"], tensors[f"{prefix}.post_attention_layernorm.weight"]

    def cast(self, dtype: torch.dtype) -> "DrawnModel":
        return DrawnModel(self.shape, self.device, dtype, self.seed)

    def rotary(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin, [positions, head size / 2], computed in float32."""
        size = self.shape.head_size
        frequencies = 1.0 / THETA ** (torch.arange(0, size, 2, dtype=torch.float32, device=self.device) / size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=self.device), frequencies)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def sizes_of(shape: LlamaShape, dtype: torch.dtype, tokens: int) -> tuple[BaseSizes, int]:
    """The worker's own counts from a configuration: the base's bytes by parts, and those of a pass of `tokens` tokens."""
    with TemporaryDirectory() as folder:
        config_of(shape).save_pretrained(folder)
        sizes = BaseSizes(*part_bytes(Path(folder), dtype, "bf16"))
        return sizes, pass_bytes(Path(folder), dtype, "bf16", tokens)
