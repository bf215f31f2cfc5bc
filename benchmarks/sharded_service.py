"""A base that no GPU is given the memory for, through the whole service: from a POST to the adapters of all jobs.

    python -m benchmarks.sharded_service [--shape 8b] [--gpus 2] [--asked 2] [--memory-gb 20] [--jobs 16] [--rank 16]
        [--steps 30] [--commit HASH]

Real API, planner, Postgres, Valkey and worker, local storage, random weights. Of each GPU the worker may use `--memory-gb`:
too few for a copy of the base, which its executor therefore shards over the node's GPUs. Of these the task may ask for fewer
(`--asked`): where they do not hold even shards of the base, the planner gives it all. One task of jobs that differ in their
rates, with early exit off. The gate: each job ends with an adapter that can be downloaded, the base was sharded, no GPU took
more than it may, and PEFT on the plain base finds the validation loss that the service tells of the winner. On a CPU
(--device cpu --shape toy), where every base is sharded by order, nothing is written.
"""

import argparse
import gc
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.llama_shapes import LLAMA_1B, LLAMA_8B, LlamaShape
from benchmarks.peft_loss import peft_loss
from benchmarks.result_file import write_result
from benchmarks.sweep.live_search import read_rows
from benchmarks.sweep.random_base import write_base
from tests.walk.running_stack import GSM8K, RunningStack, running_stack
from worker.data.row_reader import example, reader_of

SHAPES = {"8b": LLAMA_8B, "1b": LLAMA_1B, "toy": LlamaShape(4, 64, 128, 4, 2, 16, 8000, False)}
TRAINED, VALIDATED = 400, 24  # rows
TOLERANCE = 0.01  # relative, of losses: PEFT in bf16 beside a bf16 base under float32 adapters (float32 on a CPU)
CONTEXT_GB = 3.0  # of CUDA, its libraries, kernels and NCCL, which no setting counts
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Walked:
    """A task from its POST to its end. Seconds since its creation, by the service's clock. began_s: its first job has rows."""

    task: dict[str, Any]
    jobs: list[dict[str, Any]]
    sentence: str
    placed_s: float
    began_s: float
    ended_s: float
    peak_gb: float

    @property
    def steps(self) -> int:
        return sum(job["step"] for job in self.jobs)

    @property
    def figures(self) -> dict[str, float]:
        training = self.ended_s - self.began_s  # with the compilation of kernels, evaluations and exports
        return {
            "placed_s": self.placed_s, "began_s": self.began_s, "ended_s": self.ended_s, "training_s": training,
            "job_steps_per_s": self.steps / training, "peak_gb": self.peak_gb,
            "adapters": sum(job["adapter_id"] is not None for job in self.jobs),
        }  # fmt: skip


class GpuMemory:
    """The most that any GPU of this machine holds while it is watched, in GB, of all processes."""

    def __init__(self, device: str) -> None:
        self.peak_gb, self._over, self._pool = 0.0, threading.Event(), ThreadPoolExecutor(1)
        self._watching = self._pool.submit(self._watch) if device == "cuda" else None

    def __enter__(self) -> "GpuMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        if self._watching is not None:
            self._watching.result()  # raises what ended it

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._over.wait(SAMPLE_SECONDS):
            used = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            self.peak_gb = max(self.peak_gb, *(int(mebibytes) * 2**20 / 1e9 for mebibytes in used))


@contextmanager
def service(folder: Path, base: Path, given: argparse.Namespace) -> Iterator[RunningStack]:
    """A stack whose worker may use too little memory for a copy."""
    settings = {"MOTET_WORKER_SHARDING": "always"}
    if given.device == "cuda":
        settings = {"MOTET_WORKER_MEMORY_BYTES": str(round(given.memory_gb * 1e9))}
    with running_stack(folder, slots=given.gpus, MOTET_WORKER_DEVICE=given.device, **settings) as motet:
        motet.as_admin("POST", "/v1/admin/models", json={"name": "random", "source": str(base)})
        yield motet


def spec_of(given: argparse.Namespace) -> dict[str, Any]:
    """A task of jobs that differ in their rates, all trained to their end."""
    rates = [1e-5 * 1.2**job for job in range(given.jobs)]
    return {
        "base_model": "random",
        "gpus": given.asked or given.gpus,
        "search_space": {"method": "grid", "learning_rate": rates, "rank": [given.rank], "batch_size": [2]},
        "training": {"max_steps": given.steps, "max_seq_len": 512},
        "early_exit": {"policy": "none", "eval_every": max(1, given.steps // 2)},
    }


def walked(motet: RunningStack, given: argparse.Namespace) -> Walked:
    rows = read_rows(GSM8K, TRAINED + VALIDATED)
    files = {"file_id": motet.upload(rows[:TRAINED]), "validation_file_id": motet.upload(rows[TRAINED:])}
    with GpuMemory(given.device) as memory:
        task_id = motet.submit(dataset=files, **spec_of(given))
        task = motet.ended(task_id, given.deadline_s)
    if task["status"] != "succeeded":
        raise RuntimeError(f"{task_id} {task['status']}: {task['error']}")
    sentence = next(event["data"]["reason"] for event in motet.events(task_id) if event["type"] == "activations")
    jobs, created = motet.jobs(task_id), _seconds(task["created_at"])
    return Walked(
        task,
        jobs,
        sentence,
        placed_s=_seconds(task["placement"]["since"]) - created,
        began_s=min(_seconds(job["started_at"]) for job in jobs) - created,
        ended_s=_seconds(task["ended_at"]) - created,
        peak_gb=memory.peak_gb,
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def downloads(motet: RunningStack, jobs: Sequence[dict[str, Any]], folder: Path) -> dict[int, Path]:
    """The folder of every job's adapter, by the job's index. Raises ValueError where bytes are not what the service says."""
    found = {}
    for job in jobs:
        target = found[job["index"]] = folder / str(job["index"])
        target.mkdir(parents=True)
        path = f"/v1/adapters/{job['adapter_id']}"
        for file in motet.http.get(path).raise_for_status().json()["files"]:
            content = motet.http.get(f"{path}/files/{file['path']}").raise_for_status().content
            if sha256(content).hexdigest() != file["sha256"]:
                raise ValueError(f"{file['path']} of job {job['index']} is not what the service says")
            (target / file["path"]).write_bytes(content)
    return found


def gate_of(ran: Walked, base: Path, adapters: dict[int, Path], given: argparse.Namespace) -> dict[str, Any]:
    reader = reader_of(AutoTokenizer.from_pretrained(base, local_files_only=True))
    validated = [example(row) for (row,) in reader.read(read_rows(GSM8K, TRAINED + VALIDATED)[TRAINED:])]
    winner, device = ran.task["winner"], torch.device(given.device)
    theirs = peft_loss(base, adapters[winner["index"]], validated, device)
    error = abs(theirs / winner["val_loss"] - 1)
    within = given.device == "cpu" or 0 < ran.peak_gb <= given.memory_gb + CONTEXT_GB
    sharded = f"sharded over {given.gpus} devices" in ran.sentence
    return {
        "tolerance": TOLERANCE, "worst_error": error, "peft_val_loss": theirs, "val_loss": winner["val_loss"],
        "base_val_loss": ran.task["base_val_loss"], "adapters": len(adapters), "sharded": sharded, "within_memory": within,
        "gpus": given.gpus, "asked_gpus": given.asked or given.gpus,
        "compared": f"the winner's validation loss by PEFT on the plain base; {len(adapters)} adapters downloaded",
        "passed": error <= TOLERANCE and len(adapters) == given.jobs and sharded and within,
    }  # fmt: skip


def measure(given: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, Any]]:
    began, base = time.monotonic(), folder / "base"
    write_base(SHAPES[given.shape], base, torch.device(given.device))
    gc.collect()
    torch.cuda.empty_cache()  # what this process holds counts to the GPU's peak
    print(f"base written in {time.monotonic() - began:.0f} s", flush=True)
    with service(folder / "state", base, given) as motet:
        ran = walked(motet, given)
        print(f"{time.monotonic() - began:.0f} s:", ran.sentence, ran.figures, flush=True)
        adapters = downloads(motet, ran.jobs, folder / "adapters")
        print(f"{time.monotonic() - began:.0f} s: adapters downloaded", flush=True)
    rows = [{"what": ran.sentence, "job": job["index"], "best_val_loss": job["best_val_loss"]} for job in ran.jobs]
    return ran.figures, rows, gate_of(ran, base, adapters, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--asked", type=int, help="GPUs that the task asks for, if not all")
    parser.add_argument("--memory-gb", type=float, default=20.0, help="of each GPU, that the worker may use")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16, help="of each job's adapter")
    parser.add_argument("--steps", type=int, default=30, help="of each job")
    parser.add_argument("--deadline-s", type=float, default=400, help="for the task")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--commit", help="the commit that is measured, where there is no checkout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="motet-sharded-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        figures, rows, gate = measure(given, folder)
    print(figures, gate, flush=True)
    if given.device == "cuda":
        print(write_result("sharded_service", gate, figures, rows, given.commit, devices=given.gpus))


if __name__ == "__main__":
    main()
