"""Sequential PEFT as its users run it: one adapter after another, each with its own forward, backward and AdamW;
also compiled."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.llama import LLAMA_1B, RANKS
from worker.model.batch import Example

PAD_TO = 64  # the compiled run pads all rows to one length, a multiple of this, so that it compiles once


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


def _inputs(example: Example, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.zeros(1, length, dtype=torch.long)
    labels = torch.full((1, length), -100)
    tokens[0, : len(example.tokens)] = torch.from_numpy(example.tokens).long()
    mask = torch.from_numpy(example.loss_mask)
    labels[0, : len(example.tokens)][mask] = tokens[0, : len(example.tokens)][mask]
    return tokens.cuda(), labels.cuda()


def sequential_ms(examples: list[Example], compiled: bool) -> Iterator[dict[str, Any]]:
    """Wall milliseconds to train one adapter a row one step each, one after another; then the same compiled."""
    for name, compile_it in (("sequential PEFT", False), ("sequential PEFT, torch.compile", True))[: 2 if compiled else 1]:
        torch.cuda.reset_peak_memory_stats()
        model = _model(RANKS[1])
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
        run = torch.compile(model) if compile_it else model
        longest = -(-max(len(example.tokens) for example in examples) // PAD_TO) * PAD_TO
        fed = [_inputs(example, longest if compile_it else len(example.tokens)) for example in examples]

        def once(run: Any = run, fed: Any = fed, optimizer: Any = optimizer) -> None:
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
        peak = torch.cuda.max_memory_allocated() / 1e9
        yield {
            "what": name, "batch": 1, "ms": sorted(times)[1], "least_ms": min(times), "most_ms": max(times), "peak_gb": peak
        }  # fmt: skip
        del model, optimizer, run, once
        torch.cuda.empty_cache()
