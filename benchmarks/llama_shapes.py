"""Llama-shaped backbones with random weights, and batches of GSM8K rows for them. Knows no kernels and measures nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from grouped_lora.base.fp8 import Fp8Weight
from torch import Tensor

from worker.model.arena_layout import GROUPS, Target
from worker.model.backbone import Backbone
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.plain.decoder_block import BlockShape, BlockWeights
from worker.model.plain.rotary import RotaryTable

GSM8K = Path(__file__).parent.parent / "examples" / "gsm8k" / "train.jsonl"
# Estimates a row's tokens from its characters, so that 32 rows have the 5,969 tokens that the peers were measured with.
TOKENS_A_ROW = 186.5
RANKS = (16, 32, 64)


@dataclass(frozen=True)
class LlamaShape:
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    biased: bool = False  # q, k and v, as in Qwen2

    @property
    def matrix_parameters(self) -> int:
        """Parameters of all matrices in all layers, without embedding and head."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return self.layers * self.hidden * (2 * q + 2 * kv + 3 * self.ffn)


LLAMA_1B = LlamaShape(16, 2048, 8192, 32, 8, 64, 128256, True)
LLAMA_8B = LlamaShape(32, 4096, 14336, 32, 8, 128, 128256, False)
LLAMA_70B = LlamaShape(80, 8192, 28672, 64, 8, 128, 128256, False)
QWEN_32B = LlamaShape(64, 5120, 27648, 40, 8, 128, 152064, False, biased=True)


def random_backbone(shape: LlamaShape, seed: int = 0, device: str = "cuda") -> Backbone:
    """A backbone of this shape in bf16, on the GPU unless another device is named."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int, scale: float) -> Tensor:
        return (torch.randn(*size, generator=generator, device=device) * scale).bfloat16()

    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    d, f = shape.hidden, shape.ffn
    widths = {"q_proj": (d, q), "k_proj": (d, kv), "v_proj": (d, kv), "o_proj": (q, d), "gate_proj": (d, f), "up_proj": (d, f)}
    widths["down_proj"] = (f, d)
    layers, targets = [], []
    for layer in range(shape.layers):
        layers.append(
            BlockWeights(
                norm_attention=1 + normal(d, scale=0.1), w_qkv=normal(q + 2 * kv, d, scale=d**-0.5),
                b_qkv=normal(q + 2 * kv, scale=0.1) if shape.biased else None, q_norm=None, k_norm=None,
                w_o=normal(d, q, scale=0.3 * q**-0.5), b_o=None, norm_mlp=1 + normal(d, scale=0.1),
                w_gate_up=normal(2 * f, d, scale=d**-0.5), b_gate_up=None, w_down=normal(d, f, scale=0.3 * f**-0.5),
                b_down=None, window=None,
            )
        )  # fmt: skip
        for modules in GROUPS.values():
            targets.extend(Target(f"model.layers.{layer}.{module}", layer, module, *widths[module]) for module in modules)
    embedding = normal(shape.vocabulary, d, scale=2 * d**-0.5)
    frequencies = 1.0 / 500000.0 ** (torch.arange(0, shape.head_size, 2, device=device).float() / shape.head_size)
    return Backbone(
        family="llama", embedding=embedding, layers=tuple(layers), norm=1 + normal(d, scale=0.1),
        head=embedding if shape.tied else normal(shape.vocabulary, d, scale=2 * d**-0.5),
        shape=BlockShape(shape.heads, shape.kv_heads, shape.head_size, 1e-5, shape.head_size**-0.5),
        rotaries=(RotaryTable(frequencies, 1.0, torch.bfloat16),), max_positions=4096, targets=tuple(targets),
    )  # fmt: skip


def in_fp8(backbone: Backbone) -> Backbone:
    """The same base, its linear maps held in fp8."""
    layers = tuple(
        replace(w, **{name: Fp8Weight.of([getattr(w, name)]) for name in ("w_qkv", "w_o", "w_gate_up", "w_down")})
        for w in backbone.layers
    )
    return replace(backbone, layers=layers)


class Rows:
    """GSM8K rows as lengths with completion labels; their tokens are random, like the weights."""

    def __init__(self, vocabulary: int) -> None:
        texts = [[m["content"] for m in json.loads(line)["messages"]] for line in GSM8K.read_text().splitlines()]
        scale = TOKENS_A_ROW / np.mean([len(question) + len(answer) for question, answer in texts])
        self._lengths = [(max(4, round(len(q) * scale)), max(4, round(len(a) * scale))) for q, a in texts]
        self._vocabulary, self._random = vocabulary, np.random.default_rng(0)
        self._order: list[int] = []

    def take(self, count: int) -> list[Example]:
        """The next rows of an endless, shuffled walk over the file."""
        made = []
        for _ in range(count):
            if not self._order:
                self._order = list(self._random.permutation(len(self._lengths)))
            made.append(self._row(self._order.pop()))
        return made

    def all(self) -> list[Example]:
        """Every row of the file."""
        return [self._row(place) for place in range(len(self._lengths))]

    def _row(self, place: int) -> Example:
        question, answer = self._lengths[place]
        tokens = self._random.integers(0, self._vocabulary, question + answer, dtype=np.int32)
        return Example(tokens, np.arange(question + answer) >= question)


def attach(trainer: DeviceTrainer, adapters: int, ranks: Sequence[int] = RANKS) -> list[Segment]:
    """Adapters of these ranks in turn with non-zero B; segments without rows yet."""
    segments = []
    for index in range(adapters):
        rank = ranks[index % len(ranks)]
        slot = trainer.arena.attach(rank, 2.0 * rank)
        trainer.arena.master[slot.used].normal_(std=0.02)
        trainer.arena.touched(slot)
        segments.append(Segment(slot, []))
    return segments


def feed(segments: list[Segment], rows: Rows, batch: int) -> list[Segment]:
    """The same adapters with their next rows, weighted by each adapter's label count."""
    fed = []
    for segment in segments:
        examples = rows.take(batch)
        fed.append(Segment(segment.slot, examples, 1 / sum(example.labels for example in examples)))
    return fed
