"""The lists that the command line prints: who waits is told why, and others' tasks stay nameless."""

from datetime import UTC, datetime, timedelta

from motet.api.resources import Adapter, Schedule, Task, Usage
from motet.display.tables.account_tables import usage_table
from motet.display.tables.adapter_tables import adapters_table
from motet.display.tables.fleet_tables import running_table, waiting_table
from motet.display.tables.task_tables import tasks_table
from rich.console import Console


def soon() -> str:
    return (datetime.now(UTC) + timedelta(minutes=10, seconds=20)).isoformat()


def printed(table) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def task(**changes):
    made = {
        "id": "task_1",
        "status": "queued",
        "base_model": "small",
        "base_revision": "a",
        "spec": {},
        "version": 1,
        "created_at": datetime.now(UTC).isoformat(),
    }
    return Task.model_validate(made | changes)


def test_a_waiting_task_says_why_and_until_when():
    why = {"code": "waiting_for_capacity", "sentence": "It needs 1 GPU.", "expected_start": soon()}
    assert "task_1 waits: It needs 1 GPU. (starts in about 10 min)" in printed(tasks_table([task(waiting=why)]))
    assert "It needs" not in printed(tasks_table([task(waiting=why, status="cancelled")]))
    assert printed(tasks_table([task()]))


def test_an_adapter_that_is_a_mean_says_of_which_steps():
    made = {"id": "adapter_1", "task_id": "task_1", "job_id": "job_1", "step": 6, "val_loss": 0.5, "bytes": 1, "files": []}
    made |= {"lineage": None, "created_at": datetime.now(UTC).isoformat()}
    mean = made | {"id": "adapter_2", "averaged_steps": [5, 6, 8]}
    told = printed(adapters_table([Adapter.model_validate(one) for one in (made, mean)])).splitlines()
    assert ["mean of steps 5, 6 and 8" in line for line in told] == [False, False, True]


def test_the_schedule_shows_nodes_what_runs_there_and_the_queue():
    since = datetime.now(UTC).isoformat()
    own = {"task_id": "task_1", "gpus": 2, "since": since, "expected_end": soon(), "leaving": True}
    nodes = [
        {"name": "n1", "device_type": "cpu", "gpus": 4, "free": 1, "running": [own, {"gpus": 1, "since": since}]},
        {"name": "n2", "device_type": "cpu", "gpus": 4, "free": 4, "drained": True},
    ]
    waiting = [
        {"task_id": "task_2", "gpus": 1, "place": 1, "sentence": "Because.", "expected_start": soon()},
        {"gpus": 8, "place": 2},
    ]
    schedule = Schedule.model_validate({"nodes": nodes, "waiting": waiting, "waiting_total": 2})
    runs = printed(running_table(schedule))
    for word in ("task_1 on 2 (leaving)", "(another tenant's) on 1", "in 10 min", "n2 (drained)"):
        assert word in runs
    queue = printed(waiting_table(schedule))
    for word in ("task_2", "Because.", "in 10 min", "(another tenant's)"):
        assert word in queue
    assert "CPU slots" in runs.splitlines()[0]
    assert "CPU slots" in queue.splitlines()[0]
    mixed = schedule.model_copy(
        update={"nodes": [schedule.nodes[0], schedule.nodes[1].model_copy(update={"device_type": "H100"})]}
    )
    assert "GPUs" in printed(running_table(mixed)).splitlines()[0]


def test_seconds_are_of_the_devices_that_they_were_spent_on():
    month = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z", "total": {"gpu_seconds": 60.0}}
    for types, word in ((["cpu"], "CPU slot time"), (["H100", "cpu"], "GPU time"), ([], "GPU time")):
        assert word in printed(usage_table(Usage.model_validate(month | {"device_types": types})))


def test_what_was_asked_is_told_beside_the_tasks_as_the_quota_counts_it():
    month = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z", "total": {"trained_tokens": 900}}
    asked = {"requests": 2, "prompt_tokens": 1000, "completion_tokens": 234, "gpu_seconds": 3.0}
    said = printed(usage_table(Usage.model_validate(month | {"completions": asked}))).splitlines()
    assert [line.split() for line in said if line.startswith(("all", "comp"))] == [
        ["all", "tasks", "900", "0", "s", "0", "0", "s"],
        ["completions", "1,234", "3", "s"],
    ]
    assert "completions" not in printed(usage_table(Usage.model_validate(month)))


def test_a_placement_says_its_devices():
    placed = {"node": "n1", "since": "2026-01-01T00:00:00Z", "gpus": 2, "beside": 1}
    for kind, words in (
        ("cpu", "2 CPU slots of n1, beside 1"),
        ("H100", "2 GPUs of n1, beside 1"),
        (None, "2 GPUs of n1, beside 1"),
    ):
        assert task(placement=placed | {"device_type": kind}).placement.where == words
