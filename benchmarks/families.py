"""Forward and backward of 32 adapters on shapes of other families: the fused layers beside plain PyTorch, on GSM8K's batches.

    python -m benchmarks.families [--commit HASH]

Gemma 2 2B, OLMo 2 1B and Phi-3.5-mini, with random weights. Both pack all adapters; plain PyTorch is the oracle of tests, and
what ran Gemma on a GPU before the fused layers did. As in an executor, it recomputes activations where they do not fit; then
ours is measured so, too. A gate per family, a small step of such layers against float64, runs first.
"""

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LlamaShape, Rows, attach, feed, random_backbone
from benchmarks.pass_timing import base_segments, new_trainer
from benchmarks.result_file import in_turns, median_ms, write_result
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import OutOfMemory, Trainer

WINDOW, ATTENTION_CAP, LOGIT_CAP, QUERY_SCALE = 4096, 50.0, 30.0, 256  # of google/gemma-2-2b's configuration
ARENA_ROWS = 1168 + 128
BATCHES = (1, 4)
BASE, PLAIN, FUSED, RECOMPUTED = "the base alone, fused", "plain PyTorch", "fused", "fused, recomputed"


@dataclass(frozen=True)
class Measured:
    """A family: the shape that is measured, a small one for the gate, and how such a base is made."""

    shape: LlamaShape
    small: LlamaShape
    made: Callable[[LlamaShape], Backbone]


class _Norms:
    """Weights of norms about 1, rounded to bf16, so that the gate's reference in bf16 has the same numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._generator, self._dtype = torch.Generator("cuda").manual_seed(1), dtype

    def draw(self, size: int) -> torch.Tensor:
        drawn = torch.randn(size, generator=self._generator, device="cuda")
        return (1 + 0.1 * drawn).bfloat16().to(self._dtype)


def gemma_backbone(shape: LlamaShape) -> Backbone:
    """Random weights, with what Gemma 2 has beyond a Llama: norms in fp32, also behind attention and the MLP, tanh gelu, caps,
    windows in every second layer, a scaled embedding."""
    base, norms, hidden = random_backbone(shape), _Norms(torch.float32), shape.hidden
    layers = tuple(
        replace(
            w, norm_attention=norms.draw(hidden), norm_mlp=norms.draw(hidden), norm_attended=norms.draw(hidden),
            norm_mixed=norms.draw(hidden), window=None if index % 2 else WINDOW,
        )
        for index, w in enumerate(base.layers)
    )  # fmt: skip
    scaled = replace(base.shape, cap=ATTENTION_CAP, scale=QUERY_SCALE**-0.5, activation="gelu_pytorch_tanh")
    return replace(
        base, family="gemma2", layers=layers, norm=norms.draw(hidden), shape=scaled, logit_cap=LOGIT_CAP,
        embedding_scale=torch.tensor(hidden**0.5).bfloat16().item(),
    )  # fmt: skip


def olmo2_backbone(shape: LlamaShape) -> Backbone:
    """Random weights, with OLMo 2's norms: none before attention and the MLP but behind them, and of q and k over all heads."""
    base, norms = random_backbone(shape), _Norms(torch.bfloat16)
    q, k = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layers = tuple(
        replace(
            w, norm_attention=None, norm_mlp=None, norm_attended=norms.draw(shape.hidden), norm_mixed=norms.draw(shape.hidden),
            q_norm=norms.draw(q), k_norm=norms.draw(k),
        )
        for w in base.layers
    )  # fmt: skip
    return replace(base, family="olmo2", layers=layers, shape=replace(base.shape, whole_norms=True))


FAMILIES = {
    "gemma": Measured(
        LlamaShape(26, 2304, 9216, 8, 4, 256, 256000, True), LlamaShape(3, 256, 768, 2, 1, 256, 1000, True), gemma_backbone
    ),
    "olmo2": Measured(
        LlamaShape(16, 2048, 8192, 16, 16, 128, 100352, False), LlamaShape(3, 256, 768, 2, 2, 128, 1000, False), olmo2_backbone
    ),
    "phi3": Measured(  # whose joined matrices are taken apart when they are read: a Llama with heads of 96 numbers
        LlamaShape(32, 3072, 8192, 32, 32, 96, 32064, False), LlamaShape(3, 288, 768, 3, 3, 96, 1000, False), random_backbone
    ),
}


def cell(family: str, backbone: Backbone, batch: int) -> Iterator[dict[str, Any]]:
    """32 adapters, one row per contestant."""
    reader = Rows(backbone.embedding.shape[0])
    fused = new_trainer(backbone, ARENA_ROWS)
    fed = feed(attach(fused, 32), reader, batch)
    plain = Trainer(backbone, Arena(backbone.targets, ARENA_ROWS, backbone.device))
    same = []
    for own in fed:
        assert own.slot is not None
        slot = plain.arena.attach(own.slot.rank, own.slot.scale * own.slot.rank)
        plain.arena.master[slot.used] = fused.arena.master[own.slot.used]
        same.append(replace(own, slot=slot))
    base = base_segments(fed)
    saves = {name: _fits(trainer, own) for name, trainer, own in ((FUSED, fused, fed), (PLAIN, plain, same))}

    def ours(recompute: bool) -> None:
        fused.arena.slots_with_gradient.clear()
        fused.train(fed, recompute=recompute)

    def theirs() -> None:
        plain.train(same, recompute=not saves[PLAIN])

    times = in_turns({FUSED: lambda: ours(not saves[FUSED]), BASE: lambda: fused.train(base, recompute=not saves[FUSED])})
    times[PLAIN] = median_ms(theirs, 3, 1)
    if saves[FUSED] and not saves[PLAIN]:
        times[RECOMPUTED] = median_ms(lambda: ours(True), 5, 2)
    for name, (median, least, most) in times.items():
        yield {
            "what": f"forward + backward, {name}", "family": family, "batch": batch, "adapters": 32, "ms": median,
            "least_ms": least, "most_ms": most, "tokens": sum(e.length for s in fed for e in s.examples),
            "recompute": not saves.get(name, name == BASE and saves[FUSED]),
        }  # fmt: skip


def _fits(trainer: Trainer, segments: list[Segment]) -> bool:
    """Whether a pass may save its activations; an executor recomputes them where not."""
    try:
        trainer.train(segments)
    except OutOfMemory:
        gc.collect()
        torch.cuda.empty_cache()
        return False
    return True


def figures_of(rows: list[dict[str, Any]], family: str) -> dict[str, float]:
    """How much longer plain PyTorch takes than the fused layers, and what 32 adapters cost over the frozen base."""
    ms = {
        (row["what"].removeprefix("forward + backward, "), row["batch"]): row["ms"] for row in rows if row["family"] == family
    }
    figures = {f"x_{family}_bs{batch}": ms[PLAIN, batch] / ms[FUSED, batch] for batch in BATCHES}
    figures[f"x_{family}"] = min(figures.values())
    figures |= {f"lora_tax_{family}_bs{batch}": ms[FUSED, batch] / ms[BASE, batch] - 1 for batch in BATCHES}
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    gates, rows, figures = {}, [], {}
    for family, measured in FAMILIES.items():
        gates[family] = gate = run_gate(made=measured.made, shape=measured.small)
        print("gate", family, gate["passed"], round(gate["worst_error"], 3), flush=True)
        if not gate["passed"]:
            raise SystemExit(f"the gate of {family} did not pass, and nothing is written: {gate}")
        backbone = measured.made(measured.shape)
        for batch in BATCHES:
            for row in cell(family, backbone, batch):
                rows.append(row)
                print(row, flush=True)
        del backbone
        figures |= figures_of(rows, family)
    gate = {
        "tolerance": max(gate["tolerance"] for gate in gates.values()),
        "worst_error": max(gate["worst_error"] for gate in gates.values()),
        "compared": {family: gate["compared"] for family, gate in gates.items()},
        "passed": True,
    }
    print(write_result("families", gate, figures, rows, given.commit))
    print(figures)


if __name__ == "__main__":
    main()
