"""Trains a small base model from scratch: tokenizer, then a Llama-shaped decoder, on files named on the command line.

    python examples/train_base_model.py novels.txt.gz questions.jsonl --out my-base        (a GPU: about a minute)
    python examples/train_base_model.py novels.txt --out tiny --tiny --steps 20            (a CPU: seconds)

A .jsonl file holds chat rows ({"messages": [...]}), anything else is plain text; both may be gzipped. The result is a folder
that `AutoModelForCausalLM.from_pretrained` and `motet`'s model registration take as it is. Knows nothing of Motet.
"""

import argparse
import gzip
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # before torch: else the bits of a product depend on addresses

import torch
from jinja2 import Template
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"]
VALIDATE_EVERY_BLOCK = 100  # one block of this many is held out


@dataclass(frozen=True)
class Shape:
    """The model's and the step's sizes: `batch` sequences of `length` tokens."""

    vocabulary: int = 4096
    hidden: int = 288
    layers: int = 6
    heads: int = 6
    mlp: int = 768
    batch: int = 96
    length: int = 512


TINY = Shape(vocabulary=512, hidden=64, layers=2, heads=2, mlp=128, batch=4, length=64)


def documents(path: Path) -> Iterator[str]:
    """The texts of one file: each chat row rendered by the template, or each paragraph of plain text."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        if ".jsonl" in path.suffixes:
            template = Template(CHAT_TEMPLATE, keep_trailing_newline=True)
            for line in lines:
                yield template.render(messages=json.loads(line)["messages"]) + SPECIAL[0]
        else:
            paragraph: list[str] = []
            for line in lines:
                paragraph.append(line)
                if not line.strip():
                    yield "".join(paragraph)
                    paragraph = []
            yield "".join(paragraph) + SPECIAL[0]


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE in which every digit stands alone, so that numbers are spelled and not memorised."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def blocks_of(tokenizer: Tokenizer, texts: list[str], length: int) -> torch.Tensor:
    """All texts end to end, cut into int64 [blocks, length]; the rest of the last block is dropped."""
    ids = [token for encoding in tokenizer.encode_batch(texts) for token in encoding.ids]
    count = len(ids) // length
    if count < 2:
        raise SystemExit(f"the files hold {len(ids):,} tokens; at least {2 * length:,} are needed (two blocks of {length})")
    return torch.tensor(ids[: count * length], dtype=torch.int64).view(count, length)


def build_model(shape: Shape, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """A Llama decoder with tied embeddings, initialised at random in float32."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=shape.hidden,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=2 * shape.length,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.token_to_id(SPECIAL[0]),
            eos_token_id=tokenizer.token_to_id("<|end|>"),
            pad_token_id=tokenizer.token_to_id("<|pad|>"),
        )
    )


def loss_of(model: PreTrainedModel, blocks: torch.Tensor) -> torch.Tensor:
    """Mean nats per token of int64 [batch, length]; bf16 autocast on a GPU."""
    with torch.autocast(blocks.device.type, torch.bfloat16, enabled=blocks.device.type == "cuda"):
        logits = model(input_ids=blocks, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), blocks[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: PreTrainedModel, held_out: torch.Tensor, shape: Shape) -> float:
    losses = [loss_of(model, part.to(model.device)) * len(part) for part in torch.split(held_out, shape.batch)]
    return float(torch.stack(losses).sum()) / len(held_out)


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """Linear warmup over the first 5 % of the steps, then cosine down to 5 % of the peak. `step` counts from 0."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)


def train(model: PreTrainedModel, blocks: torch.Tensor, shape: Shape, steps: int, peak: float, seed: int) -> float:
    """AdamW over `steps` batches drawn epoch by epoch without replacement; returns the last validation loss."""
    held_out, seen = blocks[::VALIDATE_EVERY_BLOCK], torch.ones(len(blocks), dtype=torch.bool)
    seen[::VALIDATE_EVERY_BLOCK] = False
    blocks = blocks[seen]
    generator = torch.Generator().manual_seed(seed)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))
    order = torch.empty(0, dtype=torch.int64)
    started = time.perf_counter()
    print(f"validation loss {validation_loss(model, held_out, shape):.3f} nats per token before the first step", flush=True)
    for step in range(steps):
        while len(order) < shape.batch:
            order = torch.cat([order, torch.randperm(len(blocks), generator=generator)])
        batch, order = blocks[order[: shape.batch]].to(model.device), order[shape.batch :]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, steps, peak)
        loss = loss_of(model, batch)
        torch.autograd.backward([loss])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % max(1, steps // 10) == 0:
            print(f"step {step + 1}/{steps}: loss {loss.item():.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    return validation_loss(model, held_out, shape)


def save(folder: Path, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """The folder that transformers loads: bf16 safetensors, config, tokenizer, chat template."""
    model.bfloat16().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"bos_token": SPECIAL[0], "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **marks}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small base model from scratch.")
    parser.add_argument("files", nargs="+", type=Path, help="text or chat JSONL, gzipped or not")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="the peak of the schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a model small enough for a test on a CPU")
    arguments = parser.parse_args()
    shape = TINY if arguments.tiny else Shape()
    torch.manual_seed(arguments.seed)
    texts = [text for path in arguments.files for text in documents(path)]
    tokenizer = train_tokenizer(texts, shape.vocabulary)
    blocks = blocks_of(tokenizer, texts, shape.length)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = build_model(shape, tokenizer)
    print(f"{model.num_parameters():,} parameters, {blocks.numel():,} tokens, on {device}", flush=True)
    loss = train(model, blocks, shape, arguments.steps, arguments.learning_rate, arguments.seed)
    save(arguments.out, model, tokenizer)
    print(f"validation loss {loss:.3f} nats per token; saved to {arguments.out}")


if __name__ == "__main__":
    main()
