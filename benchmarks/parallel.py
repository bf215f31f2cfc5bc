"""Steps of the real executor on each GPU of a node alone, and on two and on four: a replica on each, 32 jobs.

    python -m benchmarks.parallel [--commit HASH] [--cells 1B:2,1B:8,8B:2] [--seconds 30]

Over real HTTP with default settings, one process a GPU; only the weights are drawn on the devices instead of read. A cell is a
shape and the jobs' batch size. What counts is the time from one step to the next, with all that the loop does in between, but
neither evaluations nor checkpoints. `busy` is the part of it that the devices spend in steps of their own: a low one tells a
device that waits from one that is slow. A cell begins and ends as the replicas meet; in between they tell of several steps at
once, each of which counts as an equal part of the time since the last telling. The gate is the kernels' own, and that every
width trains the same: the first losses of every job that stepped at both. The result file is written anew after each cell.

GPUs of one kind differ by some per cent, and of several each takes its part. So their speed is compared with the mean of what
each has alone: with the first one's, a slow first one would flatter them, a fast one belie them.
"""

import argparse
import gc
import json
import logging
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import drawn_base
from benchmarks.gate import run_gate
from benchmarks.llama_shapes import GSM8K
from benchmarks.parallel_cell import Cell
from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef, Placement
from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.placer import placer
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.step_counter import StepCounter
from worker.executor.training_loop import Executor
from worker.pipe_messages import Attach, Detach, ExecutorProgress, PlacementEnded, Stop
from worker.replicas.packed_step import Stepped
from worker.replicas.replica_set import Replicas
from worker.settings import Settings

JOBS = 32
RANKS = {"1B": 32, "8B": 16, "tiny": 8}
TOLERANCE = 2e-2  # relative: other neighbours mean other roundings in bf16
# The share of the jobs that must have stepped at both widths for a cell to count. A device steps as many jobs as fill its
# micro-batch budget, so one may leave some waiting that several step: an H200 stepped 30 of 32 at 1B and batch 8. Speeds are
# compared by the token, so the jobs may differ, but a few common ones would not show that both widths train the same.
LEAST_COMMON = 0.5
WIDTHS = (2, 4, 8)


@contextmanager
def fleet_of(base: BaseModelRef, batches: Sequence[int], devices: Sequence[int]) -> Iterator[tuple[str, dict[int, Placement]]]:
    """The URL of a fleet API and its placements by batch size. A process of its own, as a service is: the executor's first
    process launches kernels beside its loop, and would share the interpreter."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=serve_fleet, args=(its, base, batches, devices, JOBS))
    process.start()
    its.close()
    try:
        yield ours.recv()
    finally:
        ours.close()  # ends it
        process.join()


def serve_fleet(pipe: Connection, base: BaseModelRef, batches: Sequence[int], devices: Sequence[int], jobs: int) -> None:
    fleet = Fleet()
    pipe.send((fleet.url, dict(placements(fleet, base, batches, devices, jobs))))
    with suppress(EOFError):
        pipe.recv()
    fleet.close()


def measured(
    shape: str,
    batches: Sequence[int],
    devices: Sequence[int],
    seconds: float,
    folder: Path,
    note: Callable[[int, Cell], object],
) -> None:
    """A cell for each batch size, one after another on one executor of these devices. `note` takes each as it ends."""
    base = BaseModelRef(name=shape, source=str(folder), revision="0" * 64)
    with fleet_of(base, batches, devices) as (url, placed):
        batch_of = {placement.placement_id: batch for batch, placement in placed.items()}
        cells = trained(url, list(placed.values()), seconds, folder, lambda key, cell: note(batch_of[key], cell))
    for key, cell in cells.items():
        if not cell.done:
            raise RuntimeError(f"{shape} at batch {batch_of[key]} on GPUs {devices} ended after {len(cell.times)} steps")


def trained(
    url: str, placed: Sequence[Placement], seconds: float, folder: Path, note: Callable[[str, Cell], object]
) -> dict[str, Cell]:
    """Train the placements one after another, each until its cell is done, which `note` takes before the next one begins."""
    settings = Settings(
        api_url=url, join_token=JOIN_TOKEN, worker_dir=folder, worker_device="cuda", worker_checkpoint_seconds=36000
    )
    cells = {placement.placement_id: Cell(seconds, width=len(placement.device_indexes)) for placement in placed}
    waiting, real, real_step, within = list(placed), StepCounter.count, Replicas.step, [False]

    began = time.monotonic()

    def step(self: Replicas, *args: Any) -> Any:
        within[0] = True
        steps, unrunnable = real_step(self, *args)
        within[0] = False
        if unrunnable:
            raise RuntimeError(f"jobs could not run: {unrunnable}")
        return steps, unrunnable

    def count(self: StepCounter, steps: Sequence[Stepped]) -> None:
        real(self, steps)
        for key in {key.placement for stepped in steps for key in stepped.losses}:  # one, or none
            if not cells[key].times:
                print(f"{key}: the first step ended after {time.monotonic() - began:.0f} s", flush=True)
            cells[key].note(steps, met=not within[0])
            if cells[key].done:
                executor.handle_command(Detach(placement_id=key))
            elif within[0] and cells[key].due:
                executor._inbox.put(lambda: None)  # so that the replicas meet

    def tell(news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, PlacementEnded):
            if cells[news.placement_id].done:
                note(news.placement_id, cells[news.placement_id])
            attach_next()

    def attach_next() -> None:
        if not waiting:
            executor.handle_command(Stop(seconds=0))
            return
        placement = waiting.pop(0)
        executor.handle_command(Attach(placement=placement, deadline=boot_now() + placement.lease_seconds))

    StepCounter.count, Replicas.step = count, step  # type: ignore[method-assign]
    try:
        with PlacementLink(url) as link:
            executor = Executor(settings, link, tell)
            attach_next()
            executor.run()
    finally:
        StepCounter.count, Replicas.step = real, real_step  # type: ignore[method-assign]
    return cells


def placements(
    fleet: Fleet, base: BaseModelRef, batches: Sequence[int], devices: Sequence[int], jobs: int
) -> Iterator[tuple[int, Placement]]:
    data = [{"messages": row["messages"]} for row in rows()]
    for batch in batches:
        space = {"learning_rate": [1e-5 * (job + 1) for job in range(jobs)], "rank": [RANKS[base.name]], "batch_size": [batch]}
        made = placer(fleet, base)(
            space,
            data,
            dataset={"validation_fraction": 0.01, "max_validation_rows": 32},
            training={"epochs": 100, "max_seq_len": 1024},
            early_exit={"policy": "none", "eval_every": 10**5},
        )
        key = f"batch{batch}"
        update = {"placement_id": key, "token": f"token-{key}", "device_indexes": list(devices)}
        placement = made.model_copy(update=update)
        fleet.place(placement)
        yield batch, placement


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GSM8K.read_text().splitlines()]


def furthest(cell: Cell, alone: Cell) -> float:
    """The largest relative difference of the first losses between two widths, of the jobs that stepped at both. Raises
    ValueError where they are too few."""
    common = cell.losses.keys() & alone.losses.keys()
    if len(common) < LEAST_COMMON * JOBS:
        counts = f"{len(alone.losses)} on one GPU, {len(cell.losses)} on several"
        raise ValueError(f"{len(common)} of {JOBS} jobs stepped at both widths: {counts}")
    pairs = (pair for job in common for pair in zip(cell.losses[job], alone.losses[job], strict=False))  # one may step later
    return max(abs(a - b) / abs(b) for a, b in pairs)


def figures_of(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Tokens a second on several GPUs over the mean of those on one: scaling_WIDTH, with _bs8 and _8b for other batches and
    shapes."""
    speeds = defaultdict[tuple[str, int, int], list[float]](list)
    for row in found:
        speeds[row["model"], row["batch"], row["gpus"]].append(row["tokens_per_s"])
    figures: dict[str, float] = {}
    for shape, batch, width in speeds:
        if width > 1 and (shape, batch, 1) in speeds:
            name = f"scaling_{width}" + ("_8b" if shape == "8B" else "") + (f"_bs{batch}" if batch != 2 else "")
            figures[name] = round(fmean(speeds[shape, batch, width]) / fmean(speeds[shape, batch, 1]), 3)
    return figures


@dataclass
class Run:
    """What was measured so far. devices: how many GPUs the machine has, for the file's name."""

    gate: dict[str, Any]
    commit: str | None
    devices: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    alone: dict[tuple[str, int], Cell] = field(default_factory=dict)

    def note(self, shape: str, devices: Sequence[int], batch: int, cell: Cell) -> None:
        """Compare a cell with that of the first GPU, which comes first, and write the file anew. Raises ValueError if it fails
        its gate; the file then keeps the cells before it."""
        differ = furthest(cell, self.alone.setdefault((shape, batch), cell))
        self.gate["losses_differ"] = max(self.gate.get("losses_differ", 0.0), differ)
        self.gate["passed"] = self.gate["passed"] and differ <= TOLERANCE
        row = {"what": f"{JOBS} jobs of rank {RANKS[shape]}", "model": shape, "batch": batch, "gpus": len(devices)}
        self.rows.append(row | {"devices": list(devices)} | cell.row() | {"losses_differ": differ})
        print(self.rows[-1], flush=True)
        write_result("parallel", self.gate, figures_of(self.rows), self.rows, self.commit, devices=self.devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    parser.add_argument("--cells", default="1B:2,1B:8,8B:2", help="SHAPE:BATCH, separated by commas")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured in each cell, after the warmup")
    given = parser.parse_args()
    batches: dict[str, list[int]] = {}
    for cell in given.cells.split(","):
        batches.setdefault(cell.partition(":")[0], []).append(int(cell.partition(":")[2]))
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(asctime)s %(name)s: %(message)s")
    began, count = time.monotonic(), torch.cuda.device_count()
    gate = run_gate()
    print(f"gate: {gate['passed']}, {time.monotonic() - began:.0f} s", flush=True)
    drawn_base.install()
    run = Run(gate, given.commit, count)
    for shape, sizes in batches.items():
        for devices in [*([index] for index in range(count)), *(list(range(width)) for width in WIDTHS if width <= count)]:
            began = time.monotonic()
            with TemporaryDirectory() as folder:
                measured(shape, sizes, devices, given.seconds, Path(folder), partial(run.note, shape, devices))
            gc.collect()
            torch.cuda.empty_cache()
            print(f"{shape} on {devices}: {time.monotonic() - began:.0f} s", flush=True)
    print(figures_of(run.rows))


if __name__ == "__main__":
    main()
