"""Follows a task to its end: a live view on a terminal, plain lines elsewhere. Knows TaskState, LiveView, ConsoleOutput."""

import time

from motet.api.client import Client
from motet.api.resources import Task
from motet.display.console_output import SILENCE, ConsoleOutput
from motet.display.live_view import LiveView
from motet.display.task_state import TaskState

_BREATH = 0.25  # seconds between two polls of a task that changes all the time


def watch(client: Client, task_id: str, output: ConsoleOutput) -> TaskState:
    """Report the task's progress until it has ended; returns its final view."""
    view = TaskState(client.tasks.get(task_id))
    if output.lively:
        live_view = LiveView(view)
        with output.showing(live_view.with_news):
            _follow(client, view, output)
        output.console.print(live_view.with_news([]))
    else:
        with output.doing(view.summary):
            _follow(client, view, output)
    return view


def _follow(client: Client, view: TaskState, output: ConsoleOutput) -> None:
    for task in client.tasks.follow(view.task.id, SILENCE / 2):
        for sentence in view.refresh(client, task):
            output.say(f"  {sentence}")
        time.sleep(0 if task.ended else _BREATH)


def outcome(task: Task) -> str:
    """How the task ended, as a sentence."""
    if task.selection is not None:
        return f"{task.status}: {task.selection.verdict}"
    if task.winner is not None:
        base = f", the base alone has {task.base_val_loss:.4f}" if task.base_val_loss is not None else ""
        return f"{task.status}: job {task.winner.index} won with validation loss {task.winner.val_loss:.4f}{base}"
    return f"{task.status}" + (f": {task.error}" if task.error else "")
