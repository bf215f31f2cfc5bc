"""The unmodified `openai` SDK, three versions of it, goes through everything that our face offers it."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from contract.states import TASK_TERMINAL
from deploy.install import OLDER_SDKS
from service.fleet.models import BaseModel
from service.tasks.models import Task
from tests.service.fleet.scripted import ScriptedNode, completed, exited, moved, points, throughput
from tests.service.live_server import Server
from tests.service.openai.completions.completion_executor import Executor, piece, text

ROOT = Path(__file__).parents[3]
NEWEST = "3.54.0"


@pytest.fixture(scope="module")
def slashed(database) -> None:
    """A base model with a slash in its name."""
    rest = {"source": "/nowhere", "revision": "b" * 64, "architecture": "LlamaForCausalLM", "parameters": 1, "max_position": 99}
    with database.begin() as session:
        session.add(BaseModel(name="org/small", **rest))


def train(node: ScriptedNode, task_id: str) -> None:
    """What a worker would report of a search of two configurations."""
    placement = node.take(task_id)
    placement.report(placement.attached(), {"kind": "base_evaluated", "val_loss": 3.0}, moved(0, "warmup"), moved(1, "warmup"))
    placement.report(points(0, [1, 2]), points(1, [1]), points(0, [2], [1.5], "val_loss"), throughput(tokens=1000))
    placement.report(points(0, [1, 2], [0.25, 0.5], "train_accuracy"), points(0, [2], [0.625], "val_accuracy"))
    placement.report(exited(1, 2), placement.adapter(0, 1.25), completed(0))


def sdk(version: str, program: str, server: Server, key: str) -> subprocess.Popen[str]:
    folder = Path(sys.prefix) / "sdk" / version
    assert version == NEWEST or folder.is_dir(), f"`make install` puts openai {version} into {folder}"
    path = os.pathsep.join([*([str(folder)] if version != NEWEST else []), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "BASE_URL": f"{server.url}/openai/v1", "KEY": key}
    command = [sys.executable, "-m", f"tests.service.openai.{program}"]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("version", "program"),
    [
        *((version, "walk_sync") for version in (*OLDER_SDKS, NEWEST)),
        (NEWEST, "walk_async"),
        *(pytest.param(version, "walk_async", marks=pytest.mark.slow) for version in OLDER_SDKS),
    ],
)
def test_the_walk(
    version: str, program: str, server: Server, tenant, database, slashed, new_node, plan: Callable[[], int]
) -> None:
    node = new_node(slots=2)
    user = sdk(version, program, server, tenant.key)
    trained, pause = False, threading.Event()
    while user.poll() is None and not trained:
        with database.begin() as session:
            task = session.scalar(select(Task).where(Task.status.not_in(list(TASK_TERMINAL))))
        if task is None:
            pause.wait(0.05)
            continue
        plan()
        if task.id in {placement.task_id for placement in node.desired().placements}:
            train(node, task.id)
            trained = True
    said, _ = user.communicate(timeout=120)
    assert user.returncode == 0, said
    assert said.splitlines()[-1] == version


@pytest.mark.parametrize("version", [*OLDER_SDKS, NEWEST])
def test_completions(version: str, server: Server, tenant, executor: Executor) -> None:
    user = sdk(version, "walk_completions", server, tenant.key)
    while user.poll() is None:
        for work in executor.wants(wait=0.5)["requests"]:
            answer(executor, work)
    said, _ = user.communicate(timeout=120)
    assert user.returncode == 0, said
    assert said.splitlines()[-1] == version


def answer(executor: Executor, work: dict[str, Any]) -> None:
    """`Two` as the first choice and `Three` as every other one, in two pieces, with log-probabilities where asked for."""
    parts = [("Tw", "o") if index == 0 else ("Thr", "ee") for index in range(work["n"] * max(1, len(work["prompts"])))]
    for number in (1, 2):
        choices = []
        for index, tokens in enumerate(parts):
            token = tokens[number - 1]
            told = [{"token": token, "logprob": -0.5, "top": [[token, -0.5]]}] if work["logprobs"] is not None else []
            more = {"finish_reason": "stop"} if number == 2 else {}
            choices.append(text(token, index, logprobs=told, **more))
        executor.sends(piece(work, number, *choices, over=number == 2))
