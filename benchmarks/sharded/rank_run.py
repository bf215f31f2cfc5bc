"""One rank of one contestant, in a process of its own: the gate on the toy shape, then timed steps. Rank 0 reports rows."""

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from triton.errors import TritonError

from benchmarks.llama_shapes import LlamaShape
from benchmarks.sharded.contestant import Contestant, Given, Rank
from benchmarks.sharded.drawn_model import SHAPES, TOY, DrawnModel
from benchmarks.sharded.fsdp import FsdpDataParallel, FsdpPacked
from benchmarks.sharded.motet import Motet
from benchmarks.sharded.plans import EVERY_LAYER, FSDP, FSDP_PACKED, MOTET, NCCL_MEMORY, TP_PACKED, plan_of
from benchmarks.sharded.reference import errors, truth
from benchmarks.sharded.tensor_parallel import TensorParallel
from benchmarks.sharded.workload import Workload
from worker.model.sharding.rank_collectives import RankCollectives, open_store, reach_store
from worker.policy.base_sharding import ShardPlan

CONTESTANTS: dict[str, Callable[[Given], Contestant]] = {
    MOTET: Motet,
    FSDP: FsdpDataParallel,
    FSDP_PACKED: FsdpPacked,
    FSDP + NCCL_MEMORY: partial(FsdpDataParallel, nccl_memory=True),
    FSDP_PACKED + NCCL_MEMORY: partial(FsdpPacked, nccl_memory=True),
    TP_PACKED: TensorParallel,
    MOTET + EVERY_LAYER: Motet,
    FSDP + EVERY_LAYER: FsdpDataParallel,
}
# Relative errors of losses and of any matrix's dA or dB: in bfloat16 against float32 (plain PyTorch on a CPU has up to 7e-4
# and 0.033), and in float32 against float64.
TOLERANCES = {"cuda": (3e-3, 6e-2), "cpu": (1e-5, 1e-4)}
GATE_BATCHES, GATE_TOKENS = (1, 2), {"cuda": 256, "cpu": 16}
STEP, SKIPPED_GATHERS_BATCH = "step", 2
GROUP_SECONDS = 300.0
BROKEN = (RuntimeError, ImportError, TypeError, ValueError, AttributeError, AssertionError, KeyError, TritonError)
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Orders:
    """until: time.monotonic() after which no cell begins. steps: timed ones of a cell, after `warmup`."""

    contestant: str
    shape: str
    world: int
    device: str
    batches: tuple[int, ...]
    tokens: int
    memory: int
    recompute: bool
    warmup: int
    steps: int
    until: float = 0.0


def serve(number: int, pipe: Connection) -> None:
    """The process's main: runs orders as they come, and tells news as (kind, value): rank 0 "port", "gate", "built" and "row";
    each rank "done", or "failed" with what was raised, and then it ends."""
    torch.set_num_threads(1)
    # Leaves are views of a buffer that has one row an adapter, and so are their gradients.
    warnings.filterwarnings("ignore", "grad and param do not obey the gradient layout contract")
    while True:
        orders: Orders = pipe.recv()
        try:
            rank = _joined(orders, number, pipe)
            _run(orders, rank, lambda *news: pipe.send(news) if number == 0 else None)
        except BROKEN as error:
            pipe.send(("failed", f"rank {number}: {type(error).__name__}: {str(error).strip()[:600]}"))
            return
        pipe.send(("done", None))
        rank.collectives.close()


def _joined(orders: Orders, number: int, pipe: Connection) -> Rank:
    """This process in the group of all ranks, whose rendezvous rank 0 holds."""
    device = torch.device(f"cuda:{number}" if orders.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # else a device mesh chooses the device
    if number == 0:
        store = open_store(_HOST, orders.world, GROUP_SECONDS)
        pipe.send(("port", store.port))
    else:
        store = reach_store(_HOST, pipe.recv(), orders.world, GROUP_SECONDS)
    return Rank(number, orders.world, device, RankCollectives(store, number, orders.world, device, GROUP_SECONDS))


def _run(orders: Orders, rank: Rank, tell: Callable[[str, Any], None]) -> None:
    began = time.monotonic()
    gate = _gate(orders, rank)
    tell("gate", gate | {"seconds": round(time.monotonic() - began, 1)})
    if not gate["passed"]:
        return
    shape, contestant, built = SHAPES[orders.shape], None, None
    skipped = SKIPPED_GATHERS_BATCH if SKIPPED_GATHERS_BATCH in orders.batches else orders.batches[0]
    # Falling, so that a plan is built once; last the batch that is run without gathers, too, since what that computes is void.
    for batch in sorted(orders.batches, key=lambda batch: (batch == skipped, -batch)):
        plan = _plan(orders, shape, batch, orders.recompute)
        common = {
            "contestant": orders.contestant, "shape": orders.shape, "ranks": orders.world, "layers": shape.layers,
            "sharded_layers": _sharded(orders, plan), "recompute": orders.recompute, "batch": batch,
        }  # fmt: skip
        if rank.collectives.most(int(time.monotonic() > orders.until)):
            tell("row", common | {"what": STEP, "skipped": "the deadline had passed"})
            continue
        if contestant is None or plan != built:
            began = time.monotonic()
            if contestant is not None:
                contestant.close()
            contestant = None
            _release(rank)
            contestant, built = _made(orders, rank, shape, plan, orders.recompute), plan
            tell("built", {"seconds": round(time.monotonic() - began, 1)})
        common["note"] = contestant.note
        work = Workload(batch, orders.tokens, shape.vocabulary)
        contestant.prepare(work)
        tell("row", common | {"what": STEP} | _timed(orders, rank, contestant, work))
        if batch == skipped and orders.contestant == MOTET and plan is not None:
            with contestant.without_gathers():
                tell("row", common | {"what": "step, gathers skipped"} | _timed(orders, rank, contestant, work))


def _sharded(orders: Orders, plan: ShardPlan | None) -> int:
    if plan is None:
        return SHAPES[orders.shape].layers if orders.contestant == TP_PACKED else 0
    return len(plan.layers)


def _plan(orders: Orders, shape: LlamaShape, batch: int, recompute: bool) -> ShardPlan | None:
    return plan_of(orders.contestant, shape, orders.world, orders.memory, batch, orders.tokens, recompute)


def _made(orders: Orders, rank: Rank, shape: LlamaShape, plan: ShardPlan | None, recompute: bool) -> Contestant:
    dtype = torch.bfloat16 if rank.device.type == "cuda" else torch.float32
    return CONTESTANTS[orders.contestant](Given(rank, DrawnModel(shape, rank.device, dtype), plan, recompute))


def _gate(orders: Orders, rank: Rank) -> dict[str, Any]:
    """{passed, tolerance, loss, gradient}: the worst of any adapter, one pass with recomputation and one without. Each rank
    compares its own adapters."""
    exact = torch.float32 if rank.device.type == "cuda" else torch.float64
    worst = [0.0, 0.0]
    for batch, recompute in zip(GATE_BATCHES, (True, False), strict=True):
        contestant = _made(orders, rank, TOY, _plan(orders, TOY, batch, recompute), recompute)
        work = Workload(batch, GATE_TOKENS[rank.device.type], TOY.vocabulary)
        found = contestant.outcomes_of(work)
        for adapter, wanted in truth(DrawnModel(TOY, rank.device, exact), work, rank.own_adapters).items():
            worst = [max(pair) for pair in zip(worst, errors(found[adapter], wanted), strict=True)]
        contestant.close()
        del contestant
        _release(rank)
    every = _of_all(rank, worst)
    loss, gradient = (max(values) for values in zip(*every, strict=True))
    tolerance = TOLERANCES[rank.device.type]
    passed = loss <= tolerance[0] and gradient <= tolerance[1]
    return {"passed": passed, "tolerance": tolerance, "loss": loss, "gradient": gradient}


def _timed(orders: Orders, rank: Rank, contestant: Contestant, work: Workload) -> dict[str, Any]:
    """Wall time of a step on the rank that takes longest, and the peaks of each. All ranks begin a step together."""
    cuda, seconds, losses = rank.device.type == "cuda", [], list[float]()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(orders.warmup + orders.steps):
        rank.collectives.most(0)
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        losses = contestant.step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peaks = [torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9] if cuda else [0.0, 0.0]
    every = _of_all(rank, [*seconds[orders.warmup :], *peaks])
    each = sorted(1e3 * contestant.parts_of_step * max(values) for values in zip(*(one[:-2] for one in every), strict=True))
    ms = statistics.median(each)
    return {
        "ms": ms, "least_ms": each[0], "most_ms": each[-1], "steps": orders.steps, "tokens": work.tokens_per_step,
        "tokens_per_s": work.tokens_per_step / ms * 1e3, "peak_gb": [one[-2] for one in every],
        "reserved_gb": [one[-1] for one in every], "cap_gb": orders.memory / 1e9,
        "within_cap": max(one[-2] for one in every) * 1e9 <= orders.memory, "loss": losses[0],
    }  # fmt: skip


def _of_all(rank: Rank, values: Sequence[float]) -> list[list[float]]:
    """Every rank's values, in the order of ranks."""
    own = torch.tensor(values, dtype=torch.float64)
    found = [torch.empty_like(own) for _ in range(rank.world)]
    dist.all_gather(found, own)
    return [one.tolist() for one in found]


def _release(rank: Rank) -> None:
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
