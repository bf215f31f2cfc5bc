"""A base that no GPU holds, from files that the host has in memory to the ranks of an executor.

    python -m benchmarks.base_loading [--shape 70b] [--gpus 4] [--memory-gb 80] [--folder /dev/shm] [--commit HASH]

Random weights in files of 5 GB, written just before, so that no disk is read where the host has memory for them. What counts
is the executor's own loading, from its call to the last rank's answer: starting the ranks' processes, checking the weights'
revision, reading each rank's part, and joining the ranks. The gate: the bytes that ranks hold add up to those of the files,
each sharded byte on one rank and each resident one on all. On a CPU (--device cpu --shape toy) every part is sharded by order,
and nothing is written.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.base_loading.layered_base import write_layered
from benchmarks.base_loading.summed_rank import summed, sums_file
from benchmarks.llama_shapes import LLAMA_8B, LLAMA_70B, LlamaShape
from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of, weight_files
from worker.model.base_weight_reader import EMBEDDING, HEAD
from worker.policy.base_sharding import ShardPlan
from worker.replicas.ranks.rank_group import RankGroup
from worker.settings import Settings

SHAPES = {"70b": LLAMA_70B, "8b": LLAMA_8B, "toy": LlamaShape(4, 64, 128, 4, 2, 16, 8000, False)}
LEAST_SECONDS = 1.0  # between sentences of progress that are kept


def expected(sums: Mapping[str, int], plan: ShardPlan) -> int:
    """What the bytes of all ranks add up to. Of a sharded layer the norms stay on every rank."""
    sharded = {f"model.layers.{layer}." for layer in plan.layers}

    def copies(name: str) -> int:
        if name in (EMBEDDING, HEAD):
            return 1 if plan.ends else plan.world
        return 1 if any(map(name.startswith, sharded)) and "norm" not in name else plan.world

    return sum(total * copies(name) for name, total in sums.items())


def measure(given: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, Any]]:
    """(figures, rows, gate)"""
    devices = [torch.device(given.device, place if given.device == "cuda" else None) for place in range(given.gpus)]
    began, base = time.monotonic(), folder / "base"
    sums = write_layered(SHAPES[given.shape], base, devices)
    gc.collect()
    torch.cuda.empty_cache()
    print(f"base written in {time.monotonic() - began:.0f} s", flush=True)
    ref = BaseModelRef(name="random", source=str(base), revision=revision_of(base))
    print(f"revision known after {time.monotonic() - began:.0f} s", flush=True)
    size, files = sum(path.stat().st_size for path in weight_files(base)), len(weight_files(base))
    settings = Settings(
        api_url="http://localhost", join_token="none", worker_dir=folder / "worker", worker_device=given.device,
        worker_memory_bytes=round(given.memory_gb * 1e9), worker_sharding="auto" if given.device == "cuda" else "always",
    )  # fmt: skip
    group, told = RankGroup(lambda silent: None), list[tuple[float, str]]()
    with summed():
        began = time.monotonic()
        try:
            loaded = group.load(ref, devices, settings, tell=lambda said: told.append((time.monotonic() - began, said)))
            loaded.base.checked.result()
            seconds = time.monotonic() - began
        finally:
            group.close()
    assert loaded.sharding is not None, "a base that fits on one device was asked for"
    found = sum(int(sums_file(base, rank).read_text()) for rank in range(given.gpus))
    wanted = expected(sums, loaded.sharding.plan)
    rows: list[dict[str, Any]] = [{"what": loaded.sharding.sentence, "files": files, "gb": size / 1e9}]
    kept = [one for at, one in enumerate(told) if at == 0 or one[0] - told[at - 1][0] >= LEAST_SECONDS or one == told[-1]]
    rows += [{"what": "progress", "s": at, "told": said} for at, said in kept]
    read_at = next(at for at, said in told if "loaded" in said)
    figures = {
        f"load_s_{given.shape}": seconds,
        "gb": size / 1e9,
        "gb_per_s": size / 1e9 / seconds,
        "first_progress_s": read_at,
    }
    gate = {"passed": found == wanted, "compared": "the sum of all bytes on all ranks", "found": found, "wanted": wanted}
    return figures, rows, gate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="70b")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--memory-gb", type=float, default=80.0, help="of each GPU, that the worker may use")
    parser.add_argument("--folder", type=Path, help="where the base is written; left out, the folder for temporary files")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--commit", help="the commit that is measured, where there is no checkout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="motet-loading-", dir=given.folder) as name:
        figures, rows, gate = measure(given, Path(name))
    print(figures, gate, *rows, sep="\n", flush=True)
    if given.device == "cuda":
        print(write_result("base_loading", gate, figures, rows, given.commit, devices=given.gpus))


if __name__ == "__main__":
    main()
