"""Rows of 32,768 tokens on the 8B shape, on one GPU limited to 80 GB: what the executor chooses, refuses and trains.

    python -m benchmarks.long_rows [--commit HASH]

Ours is the real executor over real HTTP with its default settings; only the weights are drawn on the device instead of read.
Two executors run in turn. The first gets a task whose rows fit into memory under no choice: what counts is the time until it
refuses, including the base's loading and the memory profile. The second trains rows of 32,768 tokens; it must choose by itself
to recompute activations. The gate runs first, over a row of the same length.
"""

import argparse
import gc
import logging
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import drawn_base
from benchmarks.gate import run_gate
from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef
from contract.messages.report_messages import ActivationsChosen, Attached, JobFailed, Report, Throughput
from tests.worker.corpus import WORDS
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.reported import Reported

SHAPE = "8B"
MEMORY = 80_000_000_000  # bytes; an 80 GB card has a little more
TOKENS, TOO_MANY = 32768, 131072  # per row
ROWS = 6  # one of which is held out
RANKS, TOO_HIGH = [16, 32], [256]
STEPS = 3


def rows(tokens: int, seed: int) -> list[dict[str, Any]]:
    """Rows of at least this many tokens: each word is at least one."""
    draw = random.Random(seed)
    return [{"prompt": f"{row}", "completion": " " + " ".join(draw.choices(WORDS, k=tokens))} for row in range(ROWS)]


def run(
    tokens: int, ranks: list[int], folder: Path, attached: Callable[[], None] = lambda: None, **settings: Any
) -> tuple[Reported, float]:
    """Run a task with rows of this length on its own executor; returns its reports and the seconds until all jobs had ended.
    `attached` is called once the executor has profiled its memory."""
    fleet = Fleet()
    base = BaseModelRef(name=SHAPE, source=str(folder), revision="0" * 64)
    try:
        placement = placer(fleet, base)(
            {"learning_rate": [1e-4], "rank": ranks, "batch_size": [1]},
            rows(tokens, tokens),
            dataset={"validation_fraction": 0.1},
            training={"max_steps": STEPS, "max_seq_len": tokens},
            early_exit={"policy": "none", "eval_every": STEPS},
        )
        fleet.on_report = lambda reported, report: told(report, attached)
        inside = Inside(fleet, folder, **{"worker_step_tokens": None, **settings})
        began = time.monotonic()
        (reported,) = inside.run(placement)
        seconds = time.monotonic() - began
        if fleet.refused or not reported.ended:
            raise RuntimeError(f"the task did not come to its end: {fleet.refused} {inside.ended}")
        return reported, seconds
    finally:
        fleet.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def told(report: Report, attached: Callable[[], None]) -> None:
    """Progress, as the service receives it."""
    for event in report.events:
        if isinstance(event, Attached):
            attached()
        logging.getLogger("benchmarks.long_rows").info("%s", str(event)[:600])


def refusal(tokens: int, folder: Path, **settings: Any) -> dict[str, Any]:
    """A task that is too large. Raises RuntimeError if the executor does not refuse it."""
    reported, seconds = run(tokens, TOO_HIGH, folder, **settings)
    (failed,) = reported.ended.values()
    if not isinstance(failed, JobFailed) or "needs" not in failed.error or reported.of(Throughput):
        raise RuntimeError(f"a task of rows of {tokens} tokens was to be refused before its first step: {failed}")
    return {"what": f"a task of rows of {tokens} tokens", "seconds": seconds, "said": failed.error}


def training(tokens: int, folder: Path, attached: Callable[[], None] = lambda: None, **settings: Any) -> dict[str, Any]:
    """A task that fits. Raises RuntimeError if a job fails, or if the executor does not choose to recompute."""
    reported, seconds = run(tokens, RANKS, folder, attached, **settings)
    failed = reported.of(JobFailed)
    curves = {f"{series} of job {job}": list(curve.values()) for (job, series), curve in reported.curves.items()}
    broken = [name for name, values in curves.items() if not all(v is not None and math.isfinite(v) for v in values)]
    chosen = reported.of(ActivationsChosen)
    if failed or broken or not chosen[-1].recompute:
        raise RuntimeError(f"the task did not train as it should: {failed} {broken} {chosen}")
    steps = reported.of(Throughput)
    steady = [done for done in steps[1:] if done.steps] or steps  # the first step compiles
    return {
        "what": f"rows of {tokens} tokens, batch 1, ranks {RANKS}", "seconds": seconds,
        "tokens": sum(done.tokens for done in steady), "step_seconds": sum(done.seconds for done in steady),
        "steps": sum(done.steps for done in steps), "chosen": [choice.reason for choice in chosen], "losses": curves,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY / total))
    gate = run_gate(TOKENS - 1)
    print("gate", gate["passed"], round(gate["worst_error"], 3), flush=True)
    found: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, settings = Path(name), {"worker_device": "cuda", "worker_memory_bytes": MEMORY}
        drawn_base.install()
        found.append(refusal(TOO_MANY, folder / "refused", **settings))
        print(found[-1], flush=True)
        figures["refused_s"] = round(found[-1]["seconds"], 2)
        write_result("long_rows", gate, figures, found, given.commit)
        before = torch.cuda.memory_allocated() / 1e9  # zero if the previous executor has freed everything
        trained = training(TOKENS, folder / "trained", torch.cuda.reset_peak_memory_stats, **settings)
        trained["before_gb"] = before
        trained["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        trained["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
        found.append(trained)
        print(trained, flush=True)
    figures["peak_gb_8b_32k"] = round(trained["peak_gb"], 2)
    figures["tokens_per_s"] = round(trained["tokens"] / trained["step_seconds"], 1)
    print(write_result("long_rows", gate, figures, found, given.commit))
    print(figures)


if __name__ == "__main__":
    main()
