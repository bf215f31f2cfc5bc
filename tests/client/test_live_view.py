"""The live view in a real terminal: a task whose jobs differ in every field of a search space is drawn, whatever its width."""

import io
import json
import os
import pty
import re
import sys

import pytest
from motet.api.resources import Job, Task
from motet.display.live_view import LiveView
from motet.display.task_state import TaskState
from rich.console import Console

from contract.search_space import SearchSpace

SPACE = {
    "learning_rate": [1e-4, 5e-3],
    "rank": [8, 16],
    "alpha_ratio": [1.0, 2.0],
    "batch_size": [2, 4],
    "dropout": [0.0, 0.1],
    "weight_decay": [0.0, 0.1],
    "schedule": ["constant", "cosine"],
    "lr_warmup_ratio": [0.0, 0.1],
    "target_modules": [["q_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj"]],
    "rslora": [False, True],
    "beta": [0.1, 0.3],
    "seed": [0, 1],
}
PROGRAM = """
import json, sys
from rich.console import Console
from motet.api.resources import Job, Task
from motet.display.live_view import LiveView
from motet.display.tables.task_tables import jobs_table
from motet.display.task_state import TaskState

console = Console()
assert console.is_terminal
for name, (task, jobs) in json.loads(sys.argv[1]).items():
    view = TaskState(Task.model_validate(task), [Job.model_validate(job) for job in jobs])
    console.print(LiveView(view))
    console.print(jobs_table(view))
    print("drawn", name)
"""
ONE_VALUE = {name: values[:1] for name, values in SPACE.items()}


def task_of(space: dict[str, object]) -> tuple[dict[str, object], list[dict[str, object]]]:
    """A task at work and its jobs, as the API tells of them."""
    configs = [config.model_dump(mode="json") for config in SearchSpace.model_validate(space).expand()]
    task = {
        **{"id": "task_1", "status": "running", "base_model": "b", "base_revision": "r", "spec": {}, "version": 1},
        **{"created_at": "2026-01-01T00:00:00Z", "jobs": {"warmup": len(configs)}},
    }
    shared = {"task_id": "task_1", "status": "warmup", "step": 1, "total_steps": 9}
    return task, [shared | {"id": f"job_{at}", "index": at, "config": config} for at, config in enumerate(configs)]


def drawn(spaces: dict[str, dict[str, object]], columns: int) -> str:
    """What the program writes to a terminal of this width."""
    given = json.dumps({name: task_of(space) for name, space in spaces.items()})
    child, terminal = pty.fork()
    if child == 0:
        size = {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, given], os.environ | size)
    said = b""
    try:
        while block := os.read(terminal, 65536):
            said += block
    except OSError:  # the other end is closed
        pass
    _, status = os.waitpid(child, 0)
    text = said.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text


@pytest.mark.parametrize("columns", [60, 200])
def test_every_axis_is_drawn_alone_and_with_all_others(columns: int) -> None:
    spaces = {axis: ONE_VALUE | {axis: values} for axis, values in SPACE.items()}
    said = drawn(spaces | {"all": {"method": "random", "n": 12} | SPACE}, columns)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("drawn ")] == [*SPACE, "all"]


def test_what_tells_jobs_apart_is_whole_on_a_narrow_terminal() -> None:
    grid = ONE_VALUE | {"learning_rate": [1e-4, 5e-3], "rank": [8, 128], "batch_size": [2, 16]}
    live = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn({"grid": grid}, 60)).partition("drawn")[0].splitlines()
    rows = [line.split() for line in live]
    assert ["7", "0.005", "128", "16", "warmup", "1/9"] in rows, live


@pytest.mark.parametrize(("base", "losses"), [(4.65, (11.7, 12.1)), (4.65, (2.7, 900.0)), (None, (3.0, 3.0))])
def test_the_leader_and_the_base_are_in_the_picture_whether_or_not_it_beats_the_base(
    base: float | None, losses: tuple[float, float]
) -> None:
    task, jobs = task_of(ONE_VALUE | {"learning_rate": [1e-3, 5e-3]})
    view = TaskState(Task.model_validate(task | {"base_val_loss": base}), [Job.model_validate(job) for job in jobs])
    view.curves = {(at, "val_loss"): {1: loss, 9: loss} for at, loss in enumerate(losses)}
    console = Console(width=120, height=40, file=io.StringIO(), record=True)
    console.print(LiveView(view))
    rows = [line for line in console.export_text().splitlines() if re.search("[\u2801-\u28ff]{20}", line)]
    assert len(rows) == (1 if base is None else 2), rows


@pytest.mark.parametrize(("status", "told"), [("running", True), ("succeeded", False)])
def test_where_it_trains_is_told_until_it_has_ended(status: str, told: bool) -> None:
    task, jobs = task_of(ONE_VALUE)
    there = {"node": "node-a", "since": "2026-01-01T00:00:00Z", "tokens_per_second": 402.0}
    task |= {"status": status, "placement": there}
    view = TaskState(Task.model_validate(task), [Job.model_validate(job) for job in jobs])
    console = Console(width=120, height=40, file=io.StringIO(), record=True)
    console.print(LiveView(view))
    said = console.export_text()
    assert ("node-a" in said, "402 tokens/s" in said, "402 tokens/s" in view.summary()) == (told, told, told)
