"""Follows a task to its end: a live view on a terminal, plain lines elsewhere. Knows View, LiveView and Narrator."""

import time

from motet.api.client import Client
from motet.api.resources import Task
from motet.display.live_view import LiveView
from motet.display.narrator import SILENCE, Narrator
from motet.display.task_view import View

_BREATH = 0.25  # seconds between two polls of a task that changes all the time


def watch(client: Client, task_id: str, narrator: Narrator) -> View:
    """Report the task's progress until it has ended; returns its final view."""
    view = View(client.tasks.get(task_id))
    if narrator.lively:
        board = LiveView(view)
        with narrator.showing(board.with_news):
            _follow(client, view, narrator)
        narrator.console.print(board.with_news([]))
    else:
        with narrator.doing(view.summary):
            _follow(client, view, narrator)
    return view


def _follow(client: Client, view: View, narrator: Narrator) -> None:
    for task in client.tasks.follow(view.task.id, SILENCE / 2):
        for sentence in view.refresh(client, task):
            narrator.say(f"  {sentence}")
        time.sleep(0 if task.ended else _BREATH)


def outcome(task: Task) -> str:
    """How the task ended, as a sentence."""
    if task.winner is not None:
        base = f", the base alone has {task.base_val_loss:.4f}" if task.base_val_loss is not None else ""
        return f"{task.status}: job {task.winner.index} won with validation loss {task.winner.val_loss:.4f}{base}"
    return f"{task.status}" + (f": {task.error}" if task.error else "")
