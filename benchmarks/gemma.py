"""Forward and backward of 32 adapters on Gemma 2 2B's shape: the fused layers beside plain PyTorch, on the same GSM8K batches.

    python -m benchmarks.gemma [--commit HASH]

Both pack all adapters; plain PyTorch is what ran Gemma on a GPU before the fused layers did (and still is the oracle of tests).
As in an executor, it recomputes activations where they do not fit; then ours is measured so, too.
The gate, a small step of such layers against float64, runs first.
"""

import argparse
import gc
from collections.abc import Iterator
from dataclasses import replace
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

GEMMA2_2B = LlamaShape(26, 2304, 9216, 8, 4, 256, 256000, True)
SMALL = LlamaShape(3, 256, 768, 2, 1, 256, 1000, True)
WINDOW, ATTENTION_CAP, LOGIT_CAP, QUERY_SCALE = 4096, 50.0, 30.0, 256  # of google/gemma-2-2b's configuration
ARENA_ROWS = 1168 + 128
BASE, PLAIN, FUSED, RECOMPUTED = "the base alone, fused", "plain PyTorch", "fused", "fused, recomputed"


def gemma_backbone(shape: LlamaShape) -> Backbone:
    """Random weights, with what Gemma 2 has beyond a Llama: norms in fp32, also behind attention and the MLP, tanh gelu, caps,
    windows in every second layer, a scaled embedding."""
    base, generator = random_backbone(shape), torch.Generator("cuda").manual_seed(1)

    def norm() -> torch.Tensor:
        # rounded to bf16 first, so that the gate's reference in bf16 has the same numbers
        return (1 + 0.1 * torch.randn(shape.hidden, generator=generator, device="cuda")).bfloat16().float()

    layers = tuple(
        replace(
            w, norm_attention=norm(), norm_mlp=norm(), norm_attended=norm(), norm_mixed=norm(),
            window=None if index % 2 else WINDOW,
        )
        for index, w in enumerate(base.layers)
    )  # fmt: skip
    scaled = replace(base.shape, cap=ATTENTION_CAP, scale=QUERY_SCALE**-0.5, activation="gelu_pytorch_tanh")
    return replace(
        base, family="gemma2", layers=layers, norm=norm(), shape=scaled, logit_cap=LOGIT_CAP,
        embedding_scale=torch.tensor(shape.hidden**0.5).bfloat16().item(),
    )  # fmt: skip


def cell(backbone: Backbone, batch: int) -> Iterator[dict[str, Any]]:
    """32 adapters, one row per contestant."""
    reader = Rows(GEMMA2_2B.vocabulary)
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
            "what": f"forward + backward, {name}", "batch": batch, "adapters": 32, "ms": median, "least_ms": least,
            "most_ms": most, "tokens": sum(e.length for s in fed for e in s.examples),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    gate = run_gate(made=gemma_backbone, shape=SMALL)
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    rows, backbone = [], gemma_backbone(GEMMA2_2B)
    for batch in (1, 4):
        for row in cell(backbone, batch):
            rows.append(row)
            print(row, flush=True)
    ms = {(row["what"].removeprefix("forward + backward, "), row["batch"]): row["ms"] for row in rows}
    figures = {f"x_gemma_bs{batch}": ms[PLAIN, batch] / ms[FUSED, batch] for batch in (1, 4)}
    figures["x_gemma"] = min(figures.values())
    figures |= {f"lora_tax_gemma_bs{batch}": ms[FUSED, batch] / ms[BASE, batch] - 1 for batch in (1, 4)}
    figures = {name: round(value, 3) for name, value in figures.items()}
    print(write_result("gemma", gate, figures, rows, given.commit))
    print(figures)


if __name__ == "__main__":
    main()
