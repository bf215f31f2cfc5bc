"""Commands about tasks that exist: list, look, follow, compare, pause, cancel, download, delete."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from contract.states import TaskStatus
from contract.task_spec import VAL_LOSS
from contract.wording.comparable_losses import files_in
from motet.api.client import Client
from motet.api.errors import ApiError
from motet.api.resources import Task
from motet.commands import invocation
from motet.commands.common import Json, Limit, Output, TaskId, first, resolve, winner_of
from motet.commands.exit_codes import ExitCode
from motet.display.comparison import comparison
from motet.display.event_lines import line_of, worth_telling
from motet.display.follow_task import outcome
from motet.display.follow_task import watch as watch_task
from motet.display.scored_texts import drawn
from motet.display.tables.task_tables import jobs_table, tasks_table
from motet.display.task_state import TaskState
from motet.specs.spec_file import SpecError

_SILENCE = 30.0


def tasks(
    status: Annotated[TaskStatus | None, typer.Option(help="Only tasks of this status.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only tasks with this label, KEY=VALUE; may be repeated.")] = None,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List tasks, the newest first."""
    output, labels = Output(json), dict(_label(one) for one in label or [])
    with Client() as client:
        found = first(limit, client.tasks.list(status, labels))
    output.give(found, lambda: tasks_table(found) if found else "no tasks yet")


def jobs(task: TaskId, json: Json = False) -> None:
    """A task's configurations, the best first: steps, exits with their reasons, losses; and what to try next."""
    output = Output(json)
    with Client() as client:
        found = client.tasks.get(resolve(client, task))
        view = TaskState(found, client.tasks.jobs(found.id))
    ranked = sorted(view.jobs, key=view.best_first)
    output.give(list(view.jobs), lambda: jobs_table(view, ranked))
    output.say(f"\n{found.id} {outcome(found)}")
    _advise(found, output)


def watch(task: TaskId, json: Json = False) -> None:
    """Progress and loss curves, live, until the task ends. With --json, a line of JSON at each change."""
    output = Output(json)
    with Client() as client:
        follow(client, resolve(client, task), output)


def follow(client: Client, task_id: str, output: Output) -> None:
    """Watch the task to its end, and exit this process with the matching code."""
    with going_on(task_id, output):
        ended = _lines(client, task_id, output) if output.as_json else watch_task(client, task_id, output.console_output).task
    finish(ended, output)


@contextmanager
def going_on(task_id: str, output: Output) -> Iterator[None]:
    """Inside the context, Ctrl-C says that the task goes on without this process."""
    try:
        yield
    except KeyboardInterrupt:
        output.say(f"the task goes on; {invocation.command()} watch {task_id} shows it again")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def finish(ended: Task, output: Output) -> None:
    """Say how the task ended, and exit with the matching code."""
    output.say(outcome(ended))
    _advise(ended, output)
    if ended.winner is not None:
        output.say(f"  {invocation.command()} download {ended.id} -o my-adapter")
    if ended.status != TaskStatus.SUCCEEDED:
        raise typer.Exit(ExitCode.FAILED)


def _advise(task: Task, output: Output) -> None:
    for said in filter(None, (task.rows.cut_sentence, task.rows.overlap_sentence)):
        output.say(f"  but {said}")
    for tip in task.selection.suggestions if task.selection is not None else []:
        output.say(f"  next: {tip}")


def _lines(client: Client, task_id: str, output: Output) -> Task:
    last = None
    for last in client.tasks.follow(task_id, _SILENCE):
        output.line(last, "")
    assert last is not None
    return last


def events(
    task: TaskId,
    after: Annotated[int, typer.Option(min=0, help="Only those behind this number.")] = 0,
    follow: Annotated[bool, typer.Option(help="Go on until the task has ended.")] = True,
    json: Json = False,
) -> None:
    """Everything that happens to a task, numbered, as it happens."""
    output = Output(json)
    with Client() as client:
        for event in client.tasks.events(resolve(client, task), after, follow):
            output.line(event, f"{event.number:>5} {line_of(event)}")


def logs(
    task: TaskId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    json: Json = False,
) -> None:
    """What happened to a task, in sentences: its states, exits, losses of nodes; without the points of its curves."""
    output = Output(json)
    with Client() as client:
        for event in client.tasks.events(resolve(client, task), follow=follow):
            if worth_telling(event):
                output.line(event, line_of(event))


def compare(
    task: TaskId,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another task's id.")],
    json: Json = False,
) -> None:
    """Two tasks side by side: what differs in their specs, their best losses, what they took."""
    output = Output(json)
    with Client() as client:
        first, second = (client.tasks.get(resolve(client, one)) for one in (task, other))
        contents = _contents(client, {file for one in (first, second) for file in files_in(one.spec)}) if not json else {}
    output.give({"tasks": [first, second]}, lambda: comparison(first, second, contents))


def _contents(client: Client, files: Collection[str]) -> dict[str, str]:
    """The sha256 of those of these files that still exist."""
    found = {}
    for id in files:
        try:
            found[id] = client.files.get(id).sha256
        except ApiError as error:
            if error.status != 404:
                raise
    return found


def evaluations(
    task: TaskId,
    samples: Annotated[int, typer.Option(min=0, help="So many prompts with everybody's texts.")] = 2,
    json: Json = False,
) -> None:
    """How the texts of the base and of each adapter that was kept were scored, and of jobs at milestones; with samples."""
    output = Output(json)
    with Client() as client:
        found = client.tasks.get(resolve(client, task))
        by_texts = found.spec.get("select_by", VAL_LOSS) != VAL_LOSS  # then jobs are scored where their warmup ends, too
        asked = by_texts or (found.spec.get("evaluation") or {}).get("milestones")
        scored = [*client.tasks.evaluations(found.id), *(client.tasks.evaluations(found.id, milestones=True) if asked else ())]
    later = "ask for 'evaluation' in the spec" if found.ended else "they come with the base and as jobs end, if its spec asks"
    pairwise = found.selection.pairwise if found.selection is not None else []
    output.give(scored, lambda: drawn(scored, samples, pairwise) if scored else f"{found.id} has no evaluations: {later}")


def pause(task: TaskId, json: Json = False) -> None:
    """Take a task off its node, once its jobs are safe, until it is resumed."""
    output = Output(json)
    with Client() as client:
        found = client.tasks.pause(resolve(client, task))
    paused = found.status == TaskStatus.PAUSED
    output.give(found, lambda: f"{found.id} is paused" if paused else f"{found.id} pauses once its jobs are safe")


def resume(task: TaskId, json: Json = False) -> None:
    """Put a paused task back into the queue; it goes on where it stood."""
    output = Output(json)
    with Client() as client:
        found = client.tasks.resume(resolve(client, task))
    output.give(found, lambda: f"{found.id} is {found.status.value}")


def cancel(task: TaskId, json: Json = False) -> None:
    """Stop a task for good; adapters committed so far stay."""
    output = Output(json)
    with Client() as client:
        found = client.tasks.cancel(resolve(client, task))
    output.give(found, lambda: f"{found.id} is cancelled")


def download(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="A task (its winner), an adapter's or a merged model's id, or `last`.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to make; left out, called after the adapter.")] = None,
    json: Json = False,
) -> None:
    """Fetch the winner's adapter as a PEFT folder, or a merged model, checked by sha256."""
    output = Output(json)
    with Client() as client:
        if task.startswith("merged_"):
            with output.console_output.doing(f"downloading {task}"):
                folder = client.merged_models.download(task, out or Path(task))
            output.give({"merged_model_id": task, "folder": str(folder)}, lambda: f"{task} is in {folder}")
            return
        adapter_id = task if task.startswith("adapter_") else winner_of(client, task, output)
        with output.console_output.doing(f"downloading {adapter_id}"):
            folder = client.adapters.download(adapter_id, out or Path(adapter_id))
    output.give({"adapter_id": adapter_id, "folder": str(folder)}, lambda: f"{adapter_id} is in {folder}")


def delete(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Tasks, files, adapters, merged models or pushes by id, or `last` for a task."),
    ],
    json: Json = False,
) -> None:
    """Delete ended tasks with their adapters, or uploads, single adapters, merged models or pushes, for good."""
    output, deleted = Output(json), []
    with Client() as client:
        deletes = {
            "file": client.files.delete,
            "adapter": client.adapters.delete,
            "merged": client.merged_models.delete,
            "push": client.hub_pushes.delete,
        }
        try:
            for id in [resolve(client, id) for id in ids]:  # before the newest is gone and `last` another task
                deletes.get(id.partition("_")[0], client.tasks.delete)(id)
                deleted.append(id)
        finally:  # where one is refused, those before it are gone for good
            if deleted:
                output.give({"deleted": deleted}, lambda: "\n".join(f"{id} is deleted" for id in deleted))


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SpecError(f"--label {text}: a label is KEY=VALUE")
    return name, value
