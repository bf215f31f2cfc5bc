"""Completions through the whole service on one device, beside a sweep that trains on the same base. Measured by `generate`.

Real API, planner, Postgres, Valkey and worker with their defaults; random weights. One client asks the base by chat
completions, streaming, one after another; windows with requests and without follow each other in turns. The sweep's pace is the
slope of its steps as the service tells them.
"""

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.llama_shapes import LlamaShape
from benchmarks.sweep.random_base import write_base
from tests.walk.running_stack import RunningStack, gsm8k, running_stack

_EPOCHS = 100  # the sweep outlasts the measurement, and is cancelled
_START_SECONDS = 180.0  # for the stack's worker to load the base and train its first steps
_POLL_SECONDS = 0.1  # the service's count changes with the worker's reports, about twice a second


def measure(
    shape: LlamaShape, device: str, jobs: int, rounds: int, seconds: float
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """(figures, rows) of a sweep of so many jobs; rounds: of a quiet and an asking window of so many seconds each,
    at best a multiple of the 30 between a worker's checkpoints."""
    with tempfile.TemporaryDirectory(prefix="motet-ask-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_base(shape, folder / "base", torch.device(device))
        if device == "cuda":
            torch.cuda.empty_cache()
        with running_stack(folder / "state", MOTET_WORKER_DEVICE=device) as motet:
            motet.as_admin("POST", "/v1/admin/models", json={"name": "random", "source": str(folder / "base")})
            return _beside(motet, jobs, rounds, seconds)


def _beside(motet: RunningStack, jobs: int, rounds: int, seconds: float) -> tuple[dict[str, float], list[dict[str, Any]]]:
    task = motet.submit(
        base_model="random",
        dataset={"file_id": motet.upload(gsm8k(200)), "max_validation_rows": 8},
        search_space={"learning_rate": [1e-4], "rank": [16], "batch_size": [2], "seed": list(range(jobs))},
        training={"epochs": _EPOCHS, "max_seq_len": 512},
        early_exit={"policy": "none", "eval_every": 100_000},
    )
    motet.until(task, lambda one: one["progress"]["steps_done"] >= 40 * jobs, _START_SECONDS)
    questions = [row["messages"][0]["content"] for row in gsm8k(64)]
    ask = Asking(motet, questions)
    cold = ask.one()
    for _ in range(3):
        ask.one()
    ask.times.clear()
    pace: dict[str, list[float]] = {"quiet": [], "asking": []}
    for _ in range(rounds):
        pace["quiet"].append(_pace(motet, task, seconds, None))
        pace["asking"].append(_pace(motet, task, seconds, ask))
    motet.http.post(f"/v1/tasks/{task}/cancel").raise_for_status()
    first = sorted(ask.times)
    pairs = [1 - after / before for before, after in zip(pace["quiet"], pace["asking"], strict=True)]
    row = {
        "what": "chat completions beside a sweep", "jobs": jobs, "requests": len(first), "steps_per_s": pace,
        "first_token_ms": [1e3 * value for value in (first[0], median(first), first[-1])],
        "pairs": pairs,
    }  # fmt: skip
    figures = {"ttft_ms": 1e3 * median(first), "ttft_cold_ms": 1e3 * cold, "sweep_slowdown": median(pairs)}
    return figures, [row]


class Asking:
    """A client that asks the base and notes how long the first token took; `times`: seconds, in order."""

    def __init__(self, motet: RunningStack, questions: list[str]) -> None:
        self._http, self._questions = motet.http, questions
        self.times: list[float] = []

    def one(self) -> float:
        """Ask the next question, read the answer to its end, return the seconds until its first token."""
        question = self._questions[len(self.times) % len(self._questions)]
        body = {"model": "random", "messages": [{"role": "user", "content": question}], "max_tokens": 64}
        body |= {"stream": True, "temperature": 0}
        began, first = time.monotonic(), None
        with self._http.stream("POST", "/openai/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"a request was refused: {answer.read().decode()}")
            for line in answer.iter_lines():
                if first is None and _has_text(line):
                    first = time.monotonic() - began
        if first is None:
            raise RuntimeError("an answer had no token")
        self.times.append(first)
        return first

    def until(self, end: float) -> None:
        """Ask one question after another until then, by the monotonic clock."""
        while time.monotonic() < end:
            self.one()


def _has_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return any(choice["delta"].get("content") or choice.get("finish_reason") for choice in choices)


def _pace(motet: RunningStack, task: str, seconds: float, ask: Asking | None) -> float:
    """Steps of all jobs a second, between the first and the last change of the service's count in a window of so many seconds;
    with `ask`, requests follow each other meanwhile."""
    seen: list[tuple[float, int]] = []
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask.until, end) if ask is not None else None
        while time.monotonic() < end:
            done = motet.task(task)["progress"]["steps_done"]
            if not seen or seen[-1][1] != done:
                seen.append((time.monotonic(), done))
            time.sleep(_POLL_SECONDS)
        if asking is not None:
            asking.result()
    if len(seen) < 3:
        raise RuntimeError(f"the sweep's count changed {len(seen) - 1} times in {seconds:g} s; make the windows longer")
    (began, first), (ended, last) = seen[1], seen[-1]
    return (last - first) / (ended - began)
