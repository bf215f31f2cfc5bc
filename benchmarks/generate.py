"""Generation on one device: 16 adapters answer the same 64 prompts, ours in one batch, PEFT adapter by adapter.

    python -m benchmarks.generate [--commit HASH]

128 greedy tokens each on Llama-3.2-1B's shape with random weights, prompts of GSM8K's question lengths. PEFT generates with
transformers' `generate`: one prompt at a time (a few are measured, and scaled to all), and an adapter's 64 prompts as one
padded batch (two adapters are measured, and scaled). The gate runs first: greedy tokens against PEFT on a small shape in
float32, and logits on the large shape. Without a GPU a toy shape runs, and nothing is written.
"""

import argparse
import copy
import gc
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import completions_beside_sweep
from benchmarks.llama_shapes import LLAMA_1B, RANKS, LlamaShape, Rows
from benchmarks.result_file import write_result
from contract.job_config import MODULES
from worker.generate.batch_scheduler import BatchStep, GenerationLimits
from worker.generate.cuda.fused_runner import FusedRunner
from worker.generate.generator import Generator, Runner
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.model.arena import Arena, Slot, rows_for
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.plain.trainer import Trainer

PAGE, PREFILL_TOKENS = 64, 16384
TOLERANCE = 1.5  # times PEFT's error in bf16, both against PEFT in float32
SMALL = LlamaShape(3, 256, 768, 4, 2, 64, 1000, True)
TOY = LlamaShape(2, 64, 96, 4, 2, 16, 300, True)
TIE = 1e-4  # of logits whose spread is about 1
OURS, ONE, BATCHED = "ours, one batch", "PEFT, one prompt at a time", "PEFT, an adapter's prompts as a batch"


@dataclass(frozen=True)
class Size:
    """What is measured. one_by_one, batches: how many prompts and adapters of PEFT are measured before scaling to all."""

    shape: LlamaShape
    adapters: int
    prompts: int
    new_tokens: int
    one_by_one: int
    batches: int
    repeats: int


FULL = Size(LLAMA_1B, 16, 64, 128, 3, 2, 3)
SMALLEST = Size(TOY, 4, 6, 12, 2, 1, 1)


class Adapted:
    """One random base with adapters of ranks 16, 32, 64 in turn: ours over the arena, and PEFT's over the same numbers."""

    def __init__(self, shape: LlamaShape, adapters: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> None:
        torch.manual_seed(0)
        self.shape, self.device = shape, device
        config = LlamaConfig(
            hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_size,
            vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=4096, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )  # fmt: skip
        with torch.device(device):
            self.base: Any = LlamaForCausalLM(config).eval()
        self.base.to(dtype)
        for weight in self.base.parameters():
            weight.requires_grad_(False)
            if weight.dim() == 2:  # as large as those of a trained base
                weight.mul_(spread * weight.shape[1] ** -0.5 / weight.float().std().item())
        backbone, ranks = Backbone.of(self.base, device), [RANKS[place % len(RANKS)] for place in range(adapters)]
        rows = sum(map(rows_for, ranks))
        self.trainer: Trainer = (
            DeviceTrainer(backbone, DeviceArena(backbone.targets, rows, device, dtype))
            if device == "cuda"
            else Trainer(backbone, Arena(backbone.targets, rows, device))
        )
        self.slots = [self.trainer.arena.attach(rank, 2.0 * rank) for rank in ranks]
        for slot in self.slots:
            self.trainer.arena.master[slot.used].normal_(std=0.02)
        self.trainer.arena.master.copy_(self.trainer.arena.master.to(dtype))  # so that PEFT's numbers are the same

    def runner(self, pages: int) -> Runner:
        cache = PagedCache(self.trainer.backbone, pages, PAGE)
        return FusedRunner(self.trainer, cache) if isinstance(self.trainer, DeviceTrainer) else PlainPass(self.trainer, cache)

    def peft(self, slot: Slot, base: Any) -> Any:
        """The slot's adapter on a base of transformers, which is changed in place."""
        config = LoraConfig(r=slot.rank, lora_alpha=2 * slot.rank, target_modules=list(MODULES), lora_dropout=0.0)
        wrapped = get_peft_model(base, config, autocast_adapter_dtype=False)
        for name, factors in self.trainer.arena.weights(slot).items():
            module: Any = wrapped.get_submodule(f"base_model.model.{name}")
            for held, value in zip((module.lora_A, module.lora_B), factors, strict=True):
                held["default"].weight.data = value.to(base.dtype).clone()
        return wrapped.eval()


def sequences(slots: Many[Slot | None], prompts: Many[tuple[int, ...]], new_tokens: int) -> list[Sequence]:
    return [Sequence(prompt, Sampling(new_tokens), slot) for slot in slots for prompt in prompts]


def pages_for(made: Many[Sequence]) -> int:
    return 1 + sum(-(-one.most_tokens // PAGE) for one in made)


def timed(runner: Runner, made: Many[Sequence]) -> dict[str, float]:
    """Generate all; seconds of the whole, of prompts, and of the median decode step."""
    limits = GenerationLimits(len(made), PREFILL_TOKENS, 4096)
    generator = Generator(runner, PageAllocator(pages_for(made), PAGE), limits, lambda tokens: "")
    for one in made:
        generator.add(one)
    prompts, decodes = 0.0, []
    began = time.perf_counter()
    while generator.busy:
        started = time.perf_counter()
        moved = generator.step()  # reads the tokens, so the device is done
        seconds = time.perf_counter() - started
        if len(moved[0].generated) == 1:
            prompts += seconds
        else:
            decodes.append(seconds)
    return {"s": time.perf_counter() - began, "prompts_s": prompts, "decode_ms": sorted(decodes)[len(decodes) // 2] * 1e3}


@torch.no_grad()
def peft_tokens(model: Any, prompts: Many[tuple[int, ...]], new_tokens: int, device: str) -> list[list[int]]:
    """Greedy tokens by transformers' generate, the prompts as one batch padded on the left."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    found = model.generate(
        input_ids=tokens, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return [row[longest:].tolist() for row in found.cpu()]


def seconds_of(model: Any, groups: Many[Many[tuple[int, ...]]], new_tokens: int, device: str) -> float:
    """Mean seconds of a group of prompts; the first is generated once more beforehand."""
    peft_tokens(model, groups[0], 8, device)
    began = time.perf_counter()
    for group in groups:
        assert len(peft_tokens(model, group, new_tokens, device)[0]) == new_tokens  # on the host, so the device is done
    return (time.perf_counter() - began) / len(groups)


def token_gate(shape: LlamaShape, device: str) -> dict[str, Any]:
    """Greedy tokens of three adapters, float32, against PEFT prompt by prompt. A first token that differs is none where PEFT's
    own logits of both are within TIE: float32 decides such a pair by the order of its sums."""
    adapted = Adapted(shape, 3, torch.float32, device)
    rng = np.random.default_rng(1)
    prompts = [tuple(rng.integers(0, shape.vocabulary, n).tolist()) for n in (1, PAGE - 1, PAGE, PAGE + 1, 17)]
    made = sequences(adapted.slots, prompts, 24)
    timed(adapted.runner(pages_for(made)), made)
    ties = wrong = 0
    for slot in adapted.slots:
        model = adapted.peft(slot, copy.deepcopy(adapted.base))
        for one in (each for each in made if each.adapter is slot):
            want = peft_tokens(model, [one.prompt], 24, device)[0]
            at = next((place for place in range(24) if one.generated[place] != want[place]), None)
            if at is None:
                continue
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*one.prompt, *want[:at]]], device=device)).logits[0, -1]
            tied = (logits[want[at]] - logits[one.generated[at]]).item() <= TIE
            ties, wrong = ties + tied, wrong + (not tied)
    distinct = len({tuple(one.generated) for one in made})
    return {
        "sequences": len(made),
        "distinct": distinct,
        "different": wrong,
        "ties": ties,
        "passed": wrong == 0 and ties < 2 and distinct > 9,
    }


@torch.no_grad()
def logit_gate(adapted: Adapted, prompts: Many[tuple[int, ...]], steps: int = 6) -> dict[str, Any]:
    """Logits of prompts and decode steps of one adapter against PEFT in float32, beside PEFT in the base's own precision."""
    slot = adapted.slots[1]
    made = sequences([slot], prompts, steps)
    pages = PageAllocator(pages_for(made), PAGE)
    for one in made:
        one.pages = pages.take(pages.pages_for(one.most_tokens))
    runner, found = adapted.runner(pages_for(made)), []
    for number in range(steps):
        logits = runner.run(BatchStep(tuple(made), prefill=number == 0)).float()
        found.append(logits.clone())
        for one, token in zip(made, logits.argmax(1).tolist(), strict=True):
            one.generated.append(token)
    ours, results = torch.stack(found, 1), []
    for dtype in (torch.float32, adapted.base.dtype):
        model = adapted.peft(slot, copy.deepcopy(adapted.base).to(dtype))
        rows = []
        for one in made:
            tokens = torch.tensor([[*one.prompt, *one.generated[:-1]]], device=adapted.device)
            rows.append(model(input_ids=tokens).logits[0, len(one.prompt) - 1 :].float())
        results.append(torch.stack(rows))
        del model
    truth, plain = results
    errors = {"ours": _error(ours, truth), "peft": _error(plain, truth)}
    limit = max(TOLERANCE * errors["peft"], 1e-4)
    return {**errors, "tolerance": TOLERANCE, "passed": errors["ours"] <= limit}


def _error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


def measure(size: Size, device: str) -> tuple[dict[str, Any], dict[str, float], list[dict[str, Any]]]:
    """(gate, figures, rows) of one size."""
    gate: dict[str, Any] = {"tokens": token_gate(SMALL if device == "cuda" else TOY, device)}
    print("gate, tokens", gate["tokens"], flush=True)
    adapted = Adapted(size.shape, size.adapters, torch.bfloat16 if device == "cuda" else torch.float32, device)
    prompts = [tuple(row.tokens[~row.loss_mask].tolist()) for row in Rows(size.shape.vocabulary).take(size.prompts)]
    gate["logits"] = logit_gate(adapted, prompts[:4])
    gate["passed"] = gate["tokens"]["passed"] and gate["logits"]["passed"]
    print("gate, logits", gate["logits"], flush=True)
    gc.collect()
    rows, total = [], size.adapters * size.prompts
    everything = sequences(adapted.slots, prompts, size.new_tokens)
    runner = adapted.runner(pages_for(everything))
    runs = [timed(runner, sequences(adapted.slots, prompts, size.new_tokens)) for _ in range(size.repeats + 1)]
    ordered = sorted(runs[1:], key=lambda run: run["s"])
    ours = ordered[len(ordered) // 2]
    spread = {"first_s": runs[0]["s"], "least_s": ordered[0]["s"], "most_s": ordered[-1]["s"]}
    rows.append({"what": OURS, "sequences": total, **spread, **ours})
    print(rows[-1], flush=True)
    del runner
    model = adapted.peft(adapted.slots[1], adapted.base)
    one = seconds_of(model, [[prompt] for prompt in prompts[: size.one_by_one]], size.new_tokens, device)
    rows.append({"what": ONE, "measured": size.one_by_one, "scaled_to": total, "prompt_s": one, "s": one * total})
    print(rows[-1], flush=True)
    batch = seconds_of(model, [prompts] * size.batches, size.new_tokens, device)
    rows.append(
        {"what": BATCHED, "measured": size.batches, "scaled_to": size.adapters, "adapter_s": batch, "s": batch * size.adapters}
    )
    print(rows[-1], flush=True)
    return gate, figures(size, rows), rows


def figures(size: Size, rows: Many[dict[str, Any]]) -> dict[str, float]:
    """The figures by name, from the rows."""
    ours, one, batched = (next(row for row in rows if row["what"] == what) for what in (OURS, ONE, BATCHED))
    tokens = size.adapters * size.prompts * size.new_tokens
    return {
        "x_peft": round(one["s"] / ours["s"], 2),
        "x_peft_batched": round(batched["s"] / ours["s"], 2),
        "tokens_per_s": round(tokens / ours["s"], 1),
        "tokens_per_s_peft": round(tokens / one["s"], 1),
        "tokens_per_s_peft_batched": round(tokens / batched["s"], 1),
        "decode_ms": round(ours["decode_ms"], 3),
        "prompts_s": round(ours["prompts_s"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gate, found, rows = measure(FULL if device == "cuda" else SMALLEST, device)
    print(found, flush=True)
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        asked, said = completions_beside_sweep.measure(LLAMA_1B, device, jobs=16, rounds=3, seconds=30.0)
        found, rows = found | asked, rows + said
        print(asked, said, flush=True)
        print(write_result("generate", gate, found, rows, options.commit))


if __name__ == "__main__":
    main()
