"""What the commands share: their output, as text or JSON, the client, ids that may be `last`, and arguments they all have."""

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import RenderableType

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import Task
from motet.commands import invocation
from motet.display.console_output import ConsoleOutput, SafeConsole, without_controls
from motet.specs.spec_file import SpecError

_PLAIN_WIDTH = 140  # columns when the output is not a terminal
_OFFERED = 20  # ids that a shell completes


def _newest_tasks() -> list[tuple[str, str]]:
    """Ids for shell completion, each with its name or status; none where the service does not answer."""
    with suppress(MotetError), Client() as client:
        found = [task for _, task in zip(range(_OFFERED), client.tasks.list(), strict=False)]
        return [(task.id, task.name or task.status.value) for task in found]
    return []


Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else there.")]
TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="A task's id, or `last` for the newest.", autocompletion=_newest_tasks)
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]


class Output:
    """Where one command speaks. As JSON, or where progress is kept `aside`, the result alone is on standard output, and
    progress on standard error."""

    def __init__(self, as_json: bool = False, aside: bool = False) -> None:
        self.as_json = as_json
        to_stderr = as_json or aside
        console = SafeConsole(highlight=False, stderr=to_stderr)
        self.console_output = ConsoleOutput(
            console if console.is_terminal else SafeConsole(highlight=False, stderr=to_stderr, width=_PLAIN_WIDTH)
        )

    def say(self, what: RenderableType = "") -> None:
        """Tell a person something that no program needs."""
        self.console_output.say(what)

    def give(self, value: Any, drawn: Callable[[], RenderableType]) -> None:
        """The command's result: the value as JSON, else what is drawn of it."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")
        else:
            self.console_output.say(drawn())

    def line(self, value: BaseModel, drawn: str) -> None:
        """One of many results, as they come: a line of JSON, or this line."""
        self.write((json.dumps(plain(value)) if self.as_json else drawn) + "\n")

    def write(self, text: str) -> None:
        """A piece of the result as it comes: whole to a program, and to a terminal without what could drive it."""
        sys.stdout.write(without_controls(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def plain(value: Any) -> Any:
    """Resources as JSON-ready values, with the API's own names."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def first(limit: int, found: Iterable[Any]) -> list[Any]:
    return [one for _, one in zip(range(limit), found, strict=False)]


def resolve(client: Client, task_id: str) -> str:
    """The id, or the newest task's for `last`."""
    if task_id != "last":
        return task_id
    newest = next(client.tasks.list(), None)
    if newest is None:
        raise MotetError(f"there is no task yet; `{invocation.command()} submit examples/spec.yaml` makes one")
    return newest.id


def winner_of(client: Client, task_id: str, output: Output) -> str:
    """The id of the task's winning adapter; says so where it does not beat the base. Raises MotetError where there is none."""
    return winning_adapter(client.tasks.get(resolve(client, task_id)), output)


def winning_adapter(found: Task, output: Output) -> str:
    """As `winner_of`, of a task that was read already."""
    if found.winner is None:
        why = f": {found.error}" if found.error else ""
        raise MotetError(f"{found.id} has no winner{'' if found.ended else ' yet'}: it is {found.status}{why}")
    if found.selection is not None and found.selection.beats_base is False:
        output.say(found.selection.verdict)
    return found.winner.adapter_id


def asked_secret(what: str) -> str:
    """A secret, typed without being shown, or a line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt(what, hide_input=True)).strip()
    line = sys.stdin.readline().strip()
    if not line:
        raise SpecError(f"no {what} on standard input; write it there, or run this on a terminal, which asks for it")
    return line
