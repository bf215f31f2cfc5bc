"""The lists that the command line prints: who waits is told why, and others' tasks stay nameless."""

from datetime import UTC, datetime, timedelta

from motet.api.resources import Schedule, Task
from motet.display.tables import running_table, tasks_table, waiting_table
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
