"""The cluster's bars in a terminal."""

from datetime import UTC, datetime, timedelta

from motet.api.resources import Schedule
from motet.display.plan_timeline import Timeline
from rich.console import Console

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_base_that_is_held_for_who_asks_is_a_bar_until_now() -> None:
    held = {"base_model": "small", "since": NOW - timedelta(minutes=1)}
    node = {"name": "gpu", "device_type": "cpu", "gpus": 2, "free": 2, "drained": False, "answering": [held]}
    console = Console(width=80)
    with console.capture() as said:
        console.print(Timeline(Schedule.model_validate({"nodes": [node], "waiting": []}), NOW))
    (line,) = [line for line in said.get().splitlines() if "answers for small" in line]
    assert 0 < line.count("█") < 20, "up to now: a task takes its place at once, so no end is drawn"


def test_a_task_of_a_later_month_leaves_others_their_scale() -> None:
    runs = {"name": "now", "gpus": 1, "since": NOW - timedelta(minutes=5), "expected_end": NOW + timedelta(minutes=20)}
    node = {"name": "gpu", "device_type": "cpu", "gpus": 2, "free": 1, "drained": False, "running": [runs]}
    later = {"name": "later", "gpus": 1, "expected_start": NOW + timedelta(days=62), "expected_end": NOW + timedelta(days=63)}
    schedule = Schedule.model_validate({"nodes": [node], "waiting": [later], "waiting_total": 1})
    console = Console(width=80)
    with console.capture() as said:
        console.print(Timeline(schedule, NOW))
    lines = said.get().splitlines()
    (bar,) = [line for line in lines if line.startswith("  now")]
    assert bar.count("█") > 40, "it runs until the end of what is drawn"
    (text,) = [line for line in lines if line.startswith("  later")]
    assert text.endswith("in 62 d")
    assert "░" not in text
