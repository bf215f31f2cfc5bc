"""`python -m benchmarks.sweep`: 60 configurations of ALTO's ranges on Llama-3.2-1B's shape with random weights, end to end.

Ours is measured whole: the real executor over real HTTP, at the product's defaults of early exit: load, profile, warmup,
continue, evaluate, export, upload. What it is compared with is extrapolated from measured parts, and labelled so:

- the same 60 one after another with PEFT, and by our own trainer with each step's pass and update captured as graphs: a
  measured step at each batch size (and each rank of ours), times the number of steps; training alone, without early exit,
  loading or evaluation;
- the same search without early exit: `none` over fewer rows, whose training is scaled to all rows; evaluations read as many
  tokens as the product allows, each of which costs what it did in ours.

Of the search's seconds by part, parking, loading and storing are wall time of the loop; optimizer, evaluation and all training
passes together are device time, measured in the search itself. base, lora and loss divide that of the passes as a sample of
them does, which is measured again with adapters and without. Idle is what the device left of the loop's wall time for
training, evaluation and bookkeeping. It is the least: of a pass that is launched kernel by kernel, the device's waits for the
host inside it count as work; of a replayed one, only those for its head, which is launched between two graphs.

One thing differs from the product: no checkpoint is taken while the search runs, since the storage that would take the bytes
is a stand-in inside this process. Kernels were compiled before, as on a node that has had such a search. Rows are real text
under a tokenizer smaller than the shape's vocabulary. The result file is written anew after each part, what the figures need
most first.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B
from benchmarks.quality.base_set_pairs import BATCH_SIZES, RANKS
from benchmarks.quality.readme_table import OURS
from benchmarks.result_file import write_result
from benchmarks.sequential_peft import sequential_ms
from benchmarks.sweep.cost_split import device_ms
from benchmarks.sweep.figures import SEARCH, SPLIT, figures
from benchmarks.sweep.live_search import Live, held_out, read_rows, run_search
from benchmarks.sweep.packed_vs_solo import spread
from benchmarks.sweep.random_base import write_base
from benchmarks.sweep.solo_steps import solo_rows
from benchmarks.sweep.stopwatch import EVALUATION, LOADING, OTHER, PARKING, STORING, TRAINING, UPDATED, Stopwatch
from contract.messages.placement_messages import BaseModelRef
from contract.task_spec import TaskSpec
from worker.compilation.kernel_compiler import KernelCompiler
from worker.data.dataset import load
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.example import Example
from worker.replicas.base_loader import DeviceBase, load_base

CHECKPOINT_SECONDS = 600  # between a placement's checkpoints: none falls into a search of this length
SEED_SHARE = 0.02  # allowed difference of a packed job's losses from its solo run, as a share of the spread between seeds
PEFT_BATCHES = 6  # per batch size
Note = Callable[[dict[str, Any]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's rows: ../shared/data/sft/gsm8k/train.jsonl")
    parser.add_argument("--rows", type=int, default=1000, help="that are trained on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--rows-none", type=int, default=150, help="that are trained on without early exit, for one epoch; 0: none"
    )
    parser.add_argument(
        "--compiled",
        type=lambda text: [int(size) for size in text.split(",") if size],
        default=[],
        help="batch sizes at which PEFT is measured under torch.compile, too, last of all: a minute or two each",
    )
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    began = time.monotonic()
    gate, rows = run_gate(), list[dict[str, Any]]()
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        print(f"{time.monotonic() - began:.0f} s", row, flush=True)
        if "ratio" in row:
            gate["compared"] |= {"packed against solo, over the spread of seeds": row["ratio"]}
            gate["passed"] = bool(gate["passed"] and row["ratio"] <= SEED_SHARE)
        write_result("sweep", gate, figures(rows), rows, given.commit)

    with tempfile.TemporaryDirectory() as folder:
        measure(given, Path(folder), note)
    print(write_result("sweep", gate, figures(rows), rows, given.commit))
    print(json.dumps(figures(rows), indent=1))


def measure(given: argparse.Namespace, folder: Path, note: Note) -> None:
    device = torch.device("cuda")
    ref = write_base(LLAMA_1B, folder / "base", device)
    data = read_rows(given.data, given.rows + held_out(given.rows))
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    compiled = KernelCompiler().begin(Path(ref.source), device, RANKS, [False], eight_bit=False)
    compiled(lambda: None, lambda: None)  # as a node does before its first search, and not again
    note(spread(_checked(ref, device), path))
    _freed()

    def search(count: int, epochs: int, **early_exit: Any) -> Live:
        held = held_out(count)
        settings = {"worker_checkpoint_seconds": CHECKPOINT_SECONDS, "worker_step_tokens": None}
        policy, rows = early_exit["policy"], data[: count + held]
        live = run_search(ref, rows, held, epochs, early_exit, folder / policy, "cuda", **settings)
        note(row_of(policy, live, count, epochs))
        return live

    watch = search(given.rows, given.epochs, policy=OURS).watch
    _freed()
    base = _checked(ref, device)
    trainer = base.trainer
    assert isinstance(trainer, DeviceTrainer), "passes are measured on a GPU"
    for row in time_split(watch, device_ms(trainer, watch.sampled)):
        note(row)
    examples = examples_of(base, path)
    for row in solo_rows(trainer.backbone, examples, BATCH_SIZES, RANKS):
        note(row)
    del base, trainer, watch
    for size in BATCH_SIZES:
        note(peft_row(examples, size))
    _freed()
    if given.rows_none:
        search(given.rows_none, 1, policy="none", eval_every=given.rows_none)
    for size in given.compiled:
        _freed()
        note(peft_row(examples, size, compiled=True))


def row_of(policy: str, live: Live, rows: int, epochs: int) -> dict[str, Any]:
    return {
        "what": SEARCH + policy, "rows_trained": rows, "epochs": epochs, "seconds": live.seconds,
        "samples": live.samples, "samples_full": live.samples_full, "samples_saved": live.saved, "ended": live.fates,
        "evaluations": live.evaluations, "tokens_trained": live.watch.tokens, "passes": live.watch.passes,
        "tokens_evaluated": live.evaluation_tokens,
        "best_val_loss": live.best_loss, "wall": {name: round(value, 3) for name, value in live.watch.seconds.items()},
    }  # fmt: skip


def time_split(watch: Stopwatch, shares: dict[str, float]) -> list[dict[str, Any]]:
    """The search's seconds by part, and what the device took. shares: milliseconds of a mean pass by part, in whose proportion
    the device time of all training passes is divided."""
    wall, spans, counts = watch.seconds, watch.device.seconds(), watch.device.counts()
    passes = sum(seconds for (part, kind), seconds in spans.items() if part == TRAINING and kind != UPDATED)
    found = {name: passes * ms / sum(shares.values()) for name, ms in shares.items()}
    idle = wall[TRAINING] + wall[EVALUATION] + wall[OTHER] - sum(spans.values())
    found["optimizer"] = sum(seconds for (_, kind), seconds in spans.items() if kind == UPDATED)
    found["evaluation"] = sum(seconds for (part, kind), seconds in spans.items() if part == EVALUATION and kind != UPDATED)
    found |= {"parking": wall[PARKING], "idle": max(0.0, idle), "loading": wall[LOADING], "storing": wall[STORING]}
    device = {
        "what": "the device in the search", "seconds": {" ".join(key): round(value, 3) for key, value in spans.items()},
        "counts": {" ".join(key): value for key, value in counts.items()}, "mean_pass_ms": shares,
    }  # fmt: skip
    return [device, {"what": SPLIT, **{name: round(value, 3) for name, value in found.items()}}]


def examples_of(base: DeviceBase, path: Path) -> Sequence[Example]:
    """The search's own training rows."""
    spec = TaskSpec.model_validate(
        {"base_model": "random", "dataset": {"file_id": "rows"}, "search_space": {"learning_rate": [1e-4]}}
    )
    return load(spec, path, None, base.reader).train.sequences


def peft_row(examples: Sequence[Example], size: int, compiled: bool = False) -> dict[str, Any]:
    """PEFT's step at this batch size."""
    batches = [list(examples[place * size : (place + 1) * size]) for place in range(PEFT_BATCHES)]
    return sequential_ms(batches, compiled)


def _checked(ref: BaseModelRef, device: torch.device) -> DeviceBase:
    """Loaded, and nothing is at work on it any more."""
    base = load_base(ref, device)
    base.checked.result()
    return base


def _freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
