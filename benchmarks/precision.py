"""What a base in fewer bits costs in quality: the same search under bf16, fp8 and NF4, its winner judged by PEFT in bf16.

    python -m benchmarks.precision --data FOLDER --state FOLDER [--pairs NAME,NAME] [--small] [--commit HASH]

The larger base of `benchmarks.quality`, made by its recipe, and four of its sets: two that may choose defaults and two that
never do. Each search has 20 configurations (every third of the quality benchmark's) and the product's defaults of early exit.
The winner's adapter, as it was at its best evaluation, is exported and judged by PEFT on the plain base in bf16, on the
validation rows and on rows that neither training nor selection read. The gate, in bf16: PEFT's loss is the one measured in
training. Each search is made with several seeds (first weights and orders), since two searches under one precision lie apart by
themselves: with eight under bf16 and fp8, which has a gate, with the first four of them under NF4. A GPU is needed for fp8;
elsewhere (--small, to try it) it does not run and nothing is written. Each winner is kept in `--state`, a folder for one
commit: a run that was interrupted goes on with the missing ones.
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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peft_loss import peft_loss
from benchmarks.quality import second_base
from benchmarks.quality.base_set_pairs import PAIRS, QWEN2, Pair
from benchmarks.quality.kept_search import search, third_of
from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef, Precision
from contract.model_revision import revision_of
from worker.adapters.peft_export import export_peft
from worker.replicas.base_loader import load_base

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "nf4")
SEEDS: dict[Precision, int] = {"bf16": 8, "fp8": 8, "nf4": 4}  # as many as an error of 0.15 % wants where a gate is held
SEARCHES = tuple((precision, seed) for precision in PRECISIONS for seed in range(SEEDS[precision]))
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


def judged(
    pair: Pair, precision: Precision, seed: int, base_folder: Path, data: Path, device: torch.device, small: bool
) -> Winner:
    """Search, and judge the winner's export by PEFT."""
    began = time.monotonic()
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
    """Of fp8 and nf4: the winner's loss by PEFT over that of bf16's winner with the same seed, averaged over its seeds; of all
    pairs together and of the one where it is largest, each with its standard error over seeds. bf16_loss_spread: the standard
    deviation of bf16's losses over seeds, relative to their mean, on average over pairs and at most."""
    found: dict[str, float] = {}
    for kind, ending in (("peft_val_loss", ""), ("peft_unseen_loss", "_unseen")):
        losses = {precision: _by_pair(rows, precision, kind) for precision in dict.fromkeys(row["precision"] for row in rows)}
        plain = losses.pop("bf16")
        for precision, table in losses.items():
            ratios = table / plain[:, : table.shape[1]]
            worst = ratios[ratios.mean(1).argmax()]
            found[f"{precision}_loss_ratio_mean{ending}"] = float(ratios.mean())
            found[f"{precision}_loss_ratio_mean_se{ending}"] = _standard_error(ratios.mean(0))
            found[f"{precision}_loss_ratio_max{ending}"] = float(worst.mean())
            found[f"{precision}_loss_ratio_max_se{ending}"] = _standard_error(worst)
        spread = plain.std(1, ddof=1) / plain.mean(1)
        found[f"bf16_loss_spread_mean{ending}"], found[f"bf16_loss_spread_max{ending}"] = (
            float(spread.mean()),
            float(spread.max()),
        )
    return found


def _by_pair(rows: Sequence[dict[str, Any]], precision: str, kind: str) -> NDArray[np.float64]:
    """[pairs, seeds], both in order of their rows."""
    pairs = dict.fromkeys(row["pair"] for row in rows)
    mine = [[row[kind] for row in rows if (row["pair"], row["precision"]) == (pair, precision)] for pair in pairs]
    return np.array(mine, np.float64)


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


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
        for precision, seed in SEARCHES:
            if precision == "fp8" and device.type != "cuda":
                continue
            judge = partial(judged, pair, precision, seed, base, given.data, device, given.small)
            won = kept(winners / f"{pair.name}-{precision}-{seed}.json", judge)
            rows.append({"pair": pair.name, "held": not pair.set.chooses, "precision": precision, "seed": seed, **vars(won)})
            print(rows[-1], flush=True)
    errors = [abs(row["peft_val_loss"] / row["val_loss"] - 1) for row in rows if row["precision"] == "bf16"]
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
