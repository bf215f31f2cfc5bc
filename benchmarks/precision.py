"""What a base in fewer bits costs in quality: the same search under bf16, fp8 and NF4, its winner judged by PEFT in bf16.

    python -m benchmarks.precision --data FOLDER --state FOLDER [--pairs NAME,NAME] [--small] [--commit HASH]

The larger base of `benchmarks.quality`, made by its recipe, and four of its sets: two that may choose defaults and two that
never do. Each search has 20 configurations (every third of the quality benchmark's) and the product's defaults of early exit.
The winner's adapter, as it was at its best evaluation, is exported and judged by PEFT on the plain base in bf16, on the
validation rows and on rows that neither training nor selection read. The gate, in bf16: PEFT's loss is the one measured in
training. A second search under bf16, with other first weights and orders, says how far two searches lie apart by themselves. A
GPU is needed for fp8; elsewhere (--small, to try it) it does not run and nothing is written. Each winner is kept in `--state`,
a folder for one commit: a run that was interrupted goes on with the missing ones.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.peft_loss import peft_loss
from benchmarks.quality import second_base
from benchmarks.quality.base_set_pairs import PAIRS, QWEN2, Pair
from benchmarks.quality.kept_search import search, third_of
from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef, Precision
from contract.model_revision import revision_of
from worker.adapters.peft_export import export_peft
from worker.replicas.base_loader import load_base

SEARCHES: dict[str, tuple[Precision, int]] = {  # by name: the precision and the jobs' seed
    "bf16": ("bf16", 0),
    "bf16_again": ("bf16", 1),
    "fp8": ("fp8", 0),
    "nf4": ("nf4", 0),
}
CHOSEN = ("qwen2-36m.gsm8k", "qwen2-36m.p3_mix", "qwen2-36m.mawps", "qwen2-36m.p3_dream")
TOLERANCE = 0.01  # relative, of losses: PEFT in bf16 beside our bf16 base under a float32 adapter


@dataclass(frozen=True)
class Winner:
    """A search's winner. val_loss: as the search measured it; peft_val_loss, peft_unseen_loss: by PEFT on the base in bf16."""

    job: int
    step: int
    val_loss: float
    peft_val_loss: float
    peft_unseen_loss: float
    seconds: float


def judged(pair: Pair, name: str, base_folder: Path, data: Path, device: torch.device, small: bool) -> Winner:
    """Search, and judge the winner's export by PEFT. name: of SEARCHES."""
    began, (precision, seed) = time.monotonic(), SEARCHES[name]
    ref = BaseModelRef(name=QWEN2, source=str(base_folder), revision=revision_of(base_folder), precision=precision)
    base = load_base(ref, device)
    found = search(base, pair, third_of(pair, seed, small, precision=precision), seed, data, 80 if small else None)
    entrant, _ = found.driver.chosen()
    assert entrant.best_totals is not None, "a winner was evaluated"
    scores = found.sweep.validation(entrant.best_totals, len(found.ground.data.validation))
    assert scores is not None, "a winner's scores are finite"
    slot = found.hold(entrant.index)
    with tempfile.TemporaryDirectory() as made:
        folder, targets = Path(made), base.trainer.backbone.targets
        weights, config = base.trainer.arena.weights(slot), found.ground.spec.jobs()[entrant.index]
        export_peft(folder, targets, weights, config=config, base_model=QWEN2)
        seconds = time.monotonic() - began
        validation, unseen = (
            peft_loss(base_folder, folder, part.sequences, device) for part in (found.ground.data.validation, found.ground.test)
        )
    return Winner(entrant.index, entrant.best_step, scores.mean, validation, unseen, seconds)


def kept(path: Path, judge: Callable[[], Winner]) -> Winner:
    """The winner in this file, judged and written there if it is not."""
    if path.exists():
        return Winner(**json.loads(path.read_text()))
    won, new = judge(), path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(vars(won)))
    os.replace(new, path)
    return won


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of every search but the first: its winners' loss by PEFT over that of bf16's winners, mean and largest over pairs."""
    found = {}
    for other in dict.fromkeys(row["search"] for row in rows if row["search"] != "bf16"):
        for kind, name in (("peft_val_loss", ""), ("peft_unseen_loss", "_unseen")):
            ratios = [
                row[kind] / next(one[kind] for one in rows if (one["pair"], one["search"]) == (row["pair"], "bf16"))
                for row in rows
                if row["search"] == other
            ]
            found[f"{other}_loss_ratio_mean{name}"] = mean(ratios)
            found[f"{other}_loss_ratio_max{name}"] = max(ratios)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets and texts")
    parser.add_argument("--state", type=Path, required=True, help="the folder of the base and of finished winners")
    parser.add_argument("--pairs", default=",".join(CHOSEN))
    parser.add_argument("--small", action="store_true", help="9 configurations, a tiny base: to try it on a CPU")
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given.state.mkdir(parents=True, exist_ok=True)
    base = given.state / (f"{QWEN2}-small" if given.small else QWEN2)
    second_base.make(given.data, base, given.small)
    winners = given.state / f"winners-{revision_of(base)[:12]}"
    rows: list[dict[str, Any]] = []
    for pair in (pair for pair in PAIRS if pair.name in given.pairs.split(",")):
        for name in SEARCHES:
            if name == "fp8" and device.type != "cuda":
                continue
            judge = partial(judged, pair, name, base, given.data, device, given.small)
            won = kept(winners / f"{pair.name}-{name}.json", judge)
            rows.append({"pair": pair.name, "held": not pair.set.chooses, "search": name, **vars(won)})
            print(rows[-1], flush=True)
    errors = [abs(row["peft_val_loss"] / row["val_loss"] - 1) for row in rows if row["search"] == "bf16"]
    gate = {
        "tolerance": TOLERANCE,
        "worst_error": max(errors),
        "compared": f"{len(errors)} winners' validation losses in bf16, by PEFT and as trained",
        "passed": max(errors) <= TOLERANCE,
    }
    found = figures_of(rows)
    print(found, gate, flush=True)
    if device.type == "cuda":
        print(write_result("precision", gate, found, rows, given.commit))


if __name__ == "__main__":
    main()
