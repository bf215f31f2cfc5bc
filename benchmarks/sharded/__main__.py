"""Steps of 8 adapters over a base that no single GPU holds under a cap: Motet beside FSDP2 and tensor parallelism.

    python -m benchmarks.sharded --shape 32b --ranks 2 [--batches 1 2 4 8] [--memory-gb 80] [--deadline-s 220] [--commit HASH]

LoRA of rank 16 on all seven linear maps, random weights drawn on the devices, rows of 256 random tokens. A step is forward,
backward and AdamW of all adapters, with their losses read. Each contestant shards as few layers as the worker's rule finds for
the cap and what the contestant holds beside the base at that batch size (plans.py); activations are recomputed by all, or with
--keep by none. First each contestant's losses and gradients on a toy shape are compared with one process in float32 (on a CPU
float64): who does not agree is not timed. Exposed communication: Motet's step less the same step without gathers, which
reads whatever weights the buffers hold. On a CPU (--device cpu --shape toy) nothing is written.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.result_file import write_result
from benchmarks.sharded.drawn_model import SHAPES
from benchmarks.sharded.plans import CAPS_GB, EVERY_LAYER, FSDP, FSDP_PACKED, MOTET, NCCL_MEMORY, TP_PACKED
from benchmarks.sharded.rank_run import CONTESTANTS, SKIPPED_GATHERS_BATCH, STEP, Orders
from benchmarks.sharded.rank_set import RankSet
from benchmarks.sharded.workload import ADAPTERS

BATCH_1_ALONE = (FSDP_PACKED, FSDP_PACKED + NCCL_MEMORY, TP_PACKED)
DEFAULT = (MOTET, FSDP, FSDP_PACKED, FSDP_PACKED + NCCL_MEMORY, TP_PACKED)
RIVALS = (FSDP, FSDP + NCCL_MEMORY, FSDP_PACKED, FSDP_PACKED + NCCL_MEMORY, TP_PACKED, FSDP + EVERY_LAYER)
FEW_STEPS = {"cpu": (1, 2), "cuda": (2, 5)}  # warmup, timed


def orders_of(options: argparse.Namespace) -> list[Orders]:
    """Of each contestant in turn; `until` is not set yet."""
    warmup, steps = FEW_STEPS[options.device]
    found = []
    for name in options.contestants:
        batches = tuple(options.batches)
        if name in BATCH_1_ALONE:
            batches = (1,) if 1 in batches else batches[:1]
        found.append(
            Orders(
                name, options.shape, options.ranks, options.device, batches, options.tokens, round(options.memory_gb * 1e9),
                not options.keep, warmup, steps, options.until,
            )
        )  # fmt: skip
    return found


def measured(orders: Sequence[Orders], note: Any) -> None:
    """Runs contestants one after another; the ranks of the next import meanwhile. note: called with (name, kind, value)."""
    sets = [RankSet(orders[0].world)]
    try:
        for place, one in enumerate(orders):
            if place + 1 < len(orders):
                sets.append(RankSet(one.world))
            if time.monotonic() > one.until:
                note(one.contestant, "failed", "not begun: the deadline had passed")
                continue
            for kind, value in sets[place].run(one):
                note(one.contestant, kind, value)
            sets[place].close()  # frees its memory
    finally:
        for each in sets:
            each.close()


def figures_of(rows: Sequence[Mapping[str, Any]], shape: str) -> dict[str, float]:
    """x_RIVAL_bsB_SHAPE: a rival's time over ours; exposed_comm_fraction_SHAPE; peak_gb_CONTESTANT_SHAPE, of any GPU."""
    timed = [row for row in rows if "ms" in row]
    ms = {(row["contestant"], row["batch"]): row["ms"] for row in timed if row["what"] == STEP}
    found = {
        f"x_{name}_bs{batch}_{shape}": round(value / ms[MOTET, batch], 3)
        for (name, batch), value in ms.items()
        if name in RIVALS and (MOTET, batch) in ms
    }
    for row in timed:
        if row["what"] != STEP:
            whole = ms[MOTET, row["batch"]]
            suffix = f"_bs{row['batch']}" if row["batch"] != SKIPPED_GATHERS_BATCH else ""
            found[f"exposed_comm_fraction{suffix}_{shape}"] = round((whole - row["ms"]) / whole, 4)
    for name in CONTESTANTS:
        peaks = [max(row["peak_gb"]) for row in timed if row["contestant"] == name]
        if peaks and max(peaks):
            found[f"peak_gb_{name}_{shape}"] = round(max(peaks), 2)
    return found


def options_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="32b")
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8], help="rows of an adapter's step")
    parser.add_argument("--tokens", type=int, default=256, help="of a row")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(DEFAULT), help="Motet first")
    parser.add_argument("--memory-gb", type=float, help="cap of each device, as given to the choice of sharded layers")
    parser.add_argument("--keep", action="store_true", help="keep activations instead of computing them again")
    parser.add_argument("--deadline-s", type=float, default=220.0, help="seconds after which nothing new begins")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    options = parser.parse_args(given)
    options.memory_gb = options.memory_gb or CAPS_GB[options.shape]
    options.until = time.monotonic() + options.deadline_s
    if options.device == "cpu" and options.shape != "toy":
        parser.error("on a CPU only --shape toy runs")
    if options.device == "cuda" and torch.cuda.device_count() < options.ranks:
        parser.error(f"{options.ranks} ranks take as many GPUs; there are {torch.cuda.device_count()}")
    return options


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the gate, rows). Writes after each contestant, since a slow host may not finish the rest in time."""
    began = time.monotonic()
    gate: dict[str, Any] = {"passed": False, "agreement": {}}
    rows: list[dict[str, Any]] = []

    def note(name: str, kind: str, value: Any) -> None:
        if kind == "gate":
            gate["agreement"][name] = value
            gate["passed"] |= name.startswith(MOTET) and value["passed"]
            if not value["passed"]:
                rows.append({"what": STEP, "contestant": name, "error": "does not agree with the reference; not timed"})
        elif kind != "built":
            rows.append(value if kind == "row" else {"what": STEP, "contestant": name, "error": value})
        print(f"{time.monotonic() - began:.0f} s", name, json.dumps(value), flush=True)
        if kind in ("row", "failed") and gate["passed"] and options.device == "cuda" and not options.dry_run:
            figures = figures_of(rows, options.shape)
            write_result("sharded", gate, figures, rows, options.commit, devices=options.ranks)

    print(f"{ADAPTERS} adapters on {options.shape}, {options.ranks} ranks, cap {options.memory_gb} GB", flush=True)
    measured(orders_of(options), note)
    print(json.dumps(figures_of(rows, options.shape)), flush=True)
    return gate, rows


def main() -> None:
    gate, _ = run(options_of())
    if not gate["passed"]:
        raise SystemExit("the gate did not pass for Motet: nothing was written")


if __name__ == "__main__":
    main()
