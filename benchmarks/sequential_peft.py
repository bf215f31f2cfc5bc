"""Sequential PEFT as its users run it: one adapter after another, each with its own forward, backward and AdamW."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.llama_shapes import LLAMA_1B, RANKS
from worker.model.example import Example

SEQUENTIAL, COMPILED = "sequential PEFT", "sequential PEFT, torch.compile"
PAD_TO = 64  # the compiled run pads all rows to one multiple of this, so that it compiles once


def _model(rank: int) -> torch.nn.Module:
    config = LlamaConfig(
        hidden_size=LLAMA_1B.hidden, intermediate_size=LLAMA_1B.ffn, num_hidden_layers=LLAMA_1B.layers,
        num_attention_heads=LLAMA_1B.heads, num_key_value_heads=LLAMA_1B.kv_heads, head_dim=LLAMA_1B.head_size,
        vocab_size=LLAMA_1B.vocabulary, tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("cuda"):
        base = LlamaForCausalLM(config).to(torch.bfloat16)
    kinds = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=kinds, lora_dropout=0.0))


def inputs(rows: Sequence[Example], length: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels [rows, length], padded on the right, where causal attention needs no mask; faster than masking."""
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), -100)
    for place, row in enumerate(rows):
        own = tokens[place, : len(row.tokens)]
        own.copy_(torch.from_numpy(row.tokens))
        mask = torch.from_numpy(row.loss_mask)
        labels[place, : len(row.tokens)][mask] = own[mask]
    return tokens, labels


def sequential_ms(batches: Sequence[Sequence[Example]], compiled: bool = False) -> dict[str, Any]:
    """Wall milliseconds to train one adapter per batch for one step each, in sequence. compiled: with torch.compile."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = _model(RANKS[1])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    lengths = [max(len(row.tokens) for row in batch) for batch in batches]
    if compiled:
        lengths = [-(-max(lengths) // PAD_TO) * PAD_TO] * len(batches)
    fed = [tuple(part.cuda() for part in inputs(batch, length)) for batch, length in zip(batches, lengths, strict=True)]

    def once() -> None:
        for tokens, labels in fed:
            run(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    once()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        once()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return {
        "what": COMPILED if compiled else SEQUENTIAL, "batch": len(batches[0]), "adapters": len(batches),
        "ms": sorted(times)[1], "least_ms": min(times), "most_ms": max(times),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip
