"""`python -m benchmarks.sweep`: 60 configurations of ALTO's ranges on Llama-3.2-1B's shape with random weights, end to end.

Ours is the real executor over real HTTP: load, profile, warmup, continue, evaluate, export, upload. Two comparisons are
extrapolated from measured parts, and labelled so: the same search without early exit (`none` over fewer rows and evaluated at
the end; training is scaled to all rows, and evaluations cost what ours cost each), and the same 60 in sequence with PEFT (its
step at each batch size, times the number of steps: training alone, without loading or evaluation). Rows are real text under a
tokenizer smaller than the shape's vocabulary.
"""

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B
from benchmarks.quality.base_set_pairs import BATCH_SIZES, RANKS, RATES
from benchmarks.quality.readme_table import OURS
from benchmarks.result_file import write_result
from benchmarks.sequential_peft import sequential_ms
from benchmarks.sweep.cost_split import device_ms
from benchmarks.sweep.live_search import HELD_OUT, Live, read_rows, run_search
from benchmarks.sweep.packed_vs_solo import spread
from benchmarks.sweep.random_base import write_base
from benchmarks.sweep.stopwatch import EVALUATION, LOADING, OTHER, PARKING, STORING, TRAINING
from contract.evaluation_plan import EVALUATIONS
from contract.messages.placement_messages import BaseModelRef
from contract.task_spec import TaskSpec
from worker.data.dataset import load
from worker.replicas.base_loader import load_base

CHECKPOINT_SECONDS = 600  # between a placement's checkpoints: no checkpoint falls into a search of this length
STEP_TOKENS = 16384  # per pass: the worker's default on a GPU
SEED_SHARE = 0.02  # allowed difference of a packed job's losses from its solo run, as a share of the spread between seeds
PEFT_BATCHES = 6  # per batch size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's rows: ../shared/data/sft/gsm8k/train.jsonl")
    parser.add_argument("--rows", type=int, default=1000, help="that are trained on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows-none", type=int, default=500, help="that are trained on without early exit, for one epoch")
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    gate = run_gate()
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        figures, rows = measure(given, Path(folder))
    ratio = rows[0]["ratio"]
    gate["compared"] |= {"packed against solo, over the spread of seeds": ratio}
    gate["passed"] = gate["passed"] and ratio <= SEED_SHARE
    print(write_result("sweep", gate, figures, rows, given.commit))
    print(json.dumps(figures, indent=1))


def measure(given: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[dict[str, Any]]]:
    device = torch.device("cuda")
    base = write_base(LLAMA_1B, folder / "base", device)
    data = read_rows(given.data, given.rows + HELD_OUT)
    seeds = _said(seed_spread(base, data, folder))  # also compiles every kernel, as a worker does once
    _freed()

    def search(count: int, epochs: int, **early_exit: Any) -> Live:
        settings = {"worker_checkpoint_seconds": CHECKPOINT_SECONDS, "worker_step_tokens": STEP_TOKENS}
        rows = data[: count + HELD_OUT]
        live = run_search(base, rows, epochs, early_exit, folder / early_exit["policy"], "cuda", **settings)
        _freed()
        return live

    ours = search(given.rows, given.epochs, policy=OURS)
    mine = _said(row_of(OURS, ours))
    none = search(given.rows_none, 1, policy="none", eval_every=given.rows_none)
    plain = _said(row_of("none", none))
    parts = _said(time_split(ours, base, device))
    _freed()
    peft = [_said(row) for row in peft_rows(base, data, folder)]
    return figures_of(ours, none, parts, peft, given.rows * given.epochs), [seeds, mine, plain, parts, *peft]


def seed_spread(base: BaseModelRef, data: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return spread(load_base(base, torch.device("cuda")), path)


def row_of(policy: str, live: Live) -> dict[str, Any]:
    return {
        "what": f"60 configurations through the executor, {policy}", "seconds": live.seconds,
        "samples": live.samples, "samples_full": live.samples_full, "samples_saved": live.saved, "ended": live.fates,
        "evaluations": live.evaluations, "tokens_trained": live.watch.tokens, "passes": live.watch.passes,
        "tokens_evaluated": live.evaluation_tokens,
        "best_val_loss": live.best_loss, "wall": {name: round(value, 3) for name, value in live.watch.seconds.items()},
    }  # fmt: skip


def time_split(live: Live, ref: BaseModelRef, device: torch.device) -> dict[str, Any]:
    """The search's seconds by part. Training: device time of sampled passes, measured again, times their number; the rest of
    the loop's time is idle, as is the loop's own bookkeeping."""
    wall, passes = live.watch.seconds, live.watch.passes
    found = {name: ms * passes / 1e3 for name, ms in device_ms(load_base(ref, device), live.watch.sampled).items()}
    idle = max(0.0, wall[TRAINING] - sum(found.values())) + wall[OTHER]
    found |= {"evaluation": wall[EVALUATION], "parking": wall[PARKING], "idle": idle}
    found |= {"loading": wall[LOADING], "storing": wall[STORING]}
    return {"what": "where the search's seconds went", **{name: round(value, 3) for name, value in found.items()}}


def peft_rows(ref: BaseModelRef, data: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """PEFT's step at each batch size, over the search's own rows."""
    spec = TaskSpec.model_validate(
        {"base_model": "random", "dataset": {"file_id": "rows"}, "search_space": {"learning_rate": [1e-4]}}
    )
    examples = load(spec, folder / "rows.jsonl", None, load_base(ref, torch.device("cpu")).reader).train.sequences
    return [
        sequential_ms([examples[place * size : (place + 1) * size] for place in range(PEFT_BATCHES)]) for size in BATCH_SIZES
    ]


def figures_of(ours: Live, none: Live, parts: dict[str, Any], peft: list[dict[str, Any]], samples: int) -> dict[str, float]:
    """samples: training rows of each configuration in total."""
    each = len(RATES) * len(RANKS)  # configurations per batch size
    sequential = sum(row["ms"] / row["adapters"] / 1e3 * each * -(-samples // row["batch"]) for row in peft)
    share = ours.samples_full / none.samples_full
    wall = none.watch.seconds
    evaluations = (EVALUATIONS * sum(none.fates.values()) - none.evaluations) / ours.evaluations
    batching_only = none.seconds + (share - 1) * (wall[TRAINING] + wall[OTHER]) + evaluations * ours.watch.seconds[EVALUATION]
    return {
        "x_sequential": sequential / ours.seconds,
        "x_sequential_batching_only": sequential / batching_only,
        "hours_sequential": sequential / 3600,
        "minutes_ours": ours.seconds / 60,
        "minutes_batching_only": batching_only / 60,
        "samples_saved": ours.saved,
        "idle_fraction": parts["idle"] / ours.seconds,
    }


def _said(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def _freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
