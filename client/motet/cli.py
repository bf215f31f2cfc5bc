"""The `motet` command line: turns arguments into calls of this package, and errors into one readable sentence.

Exit codes: 0 done; 1 the operation failed (a refusal, a failed task); 2 a mistake in the arguments or in a spec; 3 no service
to talk to; 130 interrupted.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from contract.compatibility.version import VERSION
from contract.states import TaskStatus
from motet.api.client import Client
from motet.api.errors import ApiError, MotetError, NoCredentials, Unreachable
from motet.api.resources import Task
from motet.commands import invocation
from motet.display.narrator import Narrator
from motet.display.preview import show
from motet.display.tables import files_table, jobs_table, nodes_table, running_table, tasks_table, waiting_table
from motet.display.task_view import View
from motet.display.watch import outcome
from motet.display.watch import watch as watch_task
from motet.local.demo import demo as run_demo
from motet.local.doctor import examine
from motet.local.up import up as run_up
from motet.specs.spec_file import SpecError, json_schema, read
from motet.specs.upload import preview as preview_spec
from motet.specs.upload import submit as submit_spec

_PLAIN_WIDTH = 140  # columns when stdout is not a terminal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="LoRA fine-tuning as a service: many configurations at once over one frozen base model.",
)


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"motet {VERSION}\n")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


TaskId = Annotated[str, typer.Argument(metavar="TASK", help="A task's id, or `last` for the newest.")]
Port = Annotated[int | None, typer.Option(help="Port of the API; left out, 8321 or a free one.")]
Device = Annotated[str | None, typer.Option(help="What to train on: auto, cpu or cuda.")]


def _narrator() -> Narrator:
    console = Console(highlight=False)
    return Narrator(console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH))


def _resolve(client: Client, task_id: str) -> str:
    if task_id != "last":
        return task_id
    newest = next(client.tasks.list(), None)
    if newest is None:
        raise SpecError(f"there is no task yet; `{invocation.command()} submit examples/spec.yaml` makes one")
    return newest.id


def _finish(task: Task, narrator: Narrator) -> None:
    """Print how the task ended, and exit this process with the matching code."""
    narrator.say(outcome(task))
    if task.winner is not None:
        narrator.say(f"  {invocation.command()} download {task.id} -o my-adapter")
    if task.status != TaskStatus.SUCCEEDED:
        raise typer.Exit(1)


@app.command()
def up(
    host: Annotated[str | None, typer.Option(help="Address of the API; left out, this machine alone.")] = None,
    port: Port = None,
    workers: Annotated[int | None, typer.Option(min=0, help="How many workers.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Devices that a CPU worker offers.")] = None,
    device: Device = None,
    api_processes: Annotated[int | None, typer.Option(min=1, help="How many processes serve the API.")] = None,
) -> None:
    """Run the whole of Motet here, until Ctrl-C. A second one attaches to the first."""
    given = {"--host": host, "--port": port, "--workers": workers, "--slots": slots, "--device": device}
    given |= {"--api-processes": api_processes}
    run_up(_narrator(), [word for name, value in given.items() if value is not None for word in (name, str(value))])


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the adapter (default: the state folder).")] = None,
    port: Port = None,
    device: Device = None,
) -> None:
    """Train sixteen configurations on real rows, and check the best one with PEFT."""
    given = {"--port": port, "--device": device}
    run_demo(_narrator(), out, [word for name, value in given.items() if value is not None for word in (name, str(value))])


@app.command()
def submit(
    spec: Annotated[Path, typer.Argument(help="A YAML file; examples/spec.yaml is one.")],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay and watch it train.")] = False,
) -> None:
    """Upload a spec's files and start its task."""
    narrator, draft = _narrator(), read(spec)
    with Client() as client:
        task = submit_spec(client, draft, narrator)
        if not watch:
            narrator.say(f"  {invocation.command()} watch {task.id}")
            return
        _finish(_watched(client, task.id, narrator), narrator)


@app.command()
def preview(
    spec: Annotated[Path, typer.Argument(help="A YAML file; examples/spec.yaml is one.")],
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=20, help="How many.")] = 5,
) -> None:
    """A spec's first rows as its task would train on them: what is learned, what is cut. Nothing stays on the service."""
    narrator, draft = _narrator(), read(spec)
    with Client() as client:
        show(preview_spec(client, draft, rows), narrator)


@app.command()
def watch(task: TaskId) -> None:
    """Progress and loss curves, live, until the task ends."""
    narrator = _narrator()
    with Client() as client:
        _finish(_watched(client, _resolve(client, task), narrator), narrator)


def _watched(client: Client, task_id: str, narrator: Narrator) -> Task:
    try:
        return watch_task(client, task_id, narrator).task
    except KeyboardInterrupt:
        narrator.say(f"the task goes on; {invocation.command()} watch {task_id} shows it again")
        raise typer.Exit(130) from None


@app.command()
def download(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task (its winner), an adapter's id, or `last`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")],
) -> None:
    """Fetch the winner's adapter as a PEFT folder, checked by sha256."""
    narrator = _narrator()
    with Client() as client:
        adapter_id = task
        if not task.startswith("adapter_"):
            found = client.tasks.get(_resolve(client, task))
            if found.winner is None:
                why = f": {found.error}" if found.error else ""
                raise MotetError(f"{found.id} has no winner{'' if found.ended else ' yet'}: it is {found.status}{why}")
            adapter_id = found.winner.adapter_id
        with narrator.doing(f"downloading {adapter_id}"):
            folder = client.adapters.download(adapter_id, out)
    narrator.say(f"{adapter_id} is in {folder}")


@app.command()
def tasks(
    status: Annotated[TaskStatus | None, typer.Option(help="Only tasks of this status.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
) -> None:
    """List tasks, the newest first."""
    narrator = _narrator()
    with Client() as client:
        found = [task for _, task in zip(range(limit), client.tasks.list(status), strict=False)]
    narrator.say(tasks_table(found) if found else "no tasks yet")


@app.command()
def jobs(task: TaskId) -> None:
    """A task's configurations: steps, exits with their reasons, losses."""
    narrator = _narrator()
    with Client() as client:
        found = client.tasks.get(_resolve(client, task))
        view = View(found, client.tasks.jobs(found.id))
    narrator.say(jobs_table(view))
    narrator.say(f"\n{found.id} {outcome(found)}")


@app.command()
def nodes() -> None:
    """List the machines of the fleet."""
    with Client() as client:
        found = list(client.admin.nodes())
    _narrator().say(nodes_table(found) if found else "no node has joined yet")


@app.command()
def schedule() -> None:
    """What runs where and until when; what waits, why, and when it is expected to start."""
    narrator = _narrator()
    with Client() as client:
        found = client.schedule()
    narrator.say(running_table(found) if found.nodes else "no node is ready")
    if found.waiting:
        narrator.say("")
        narrator.say(waiting_table(found))


@app.command()
def pause(task: TaskId) -> None:
    """Take a task off its node, once its jobs are safe, until it is resumed."""
    with Client() as client:
        found = client.tasks.pause(_resolve(client, task))
    paused = found.status == TaskStatus.PAUSED
    _narrator().say(f"{found.id} is paused" if paused else f"{found.id} pauses once its jobs are safe")


@app.command()
def resume(task: TaskId) -> None:
    """Put a paused task back into the queue; it goes on where it stood."""
    with Client() as client:
        found = client.tasks.resume(_resolve(client, task))
    _narrator().say(f"{found.id} is {found.status.value}")


@app.command()
def cancel(task: TaskId) -> None:
    """Stop a task for good; adapters committed so far stay."""
    with Client() as client:
        _narrator().say(f"{client.tasks.cancel(_resolve(client, task)).id} is cancelled")


@app.command()
def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Tasks, files or adapters by id, or `last` for a task.")],
) -> None:
    """Delete ended tasks with their adapters, or uploads, or single adapters, for good."""
    narrator = _narrator()
    with Client() as client:
        for id in [_resolve(client, id) for id in ids]:
            deletes = {"file": client.files.delete, "adapter": client.adapters.delete}
            deletes.get(id.partition("_")[0], client.tasks.delete)(id)
            narrator.say(f"{id} is deleted")


@app.command()
def files(
    unused: Annotated[bool, typer.Option("--unused", help="Only those that no task names.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="With --unused: delete them.")] = False,
) -> None:
    """List uploaded files, the newest first."""
    narrator = _narrator()
    if delete and not unused:
        raise SpecError("--delete deletes the files that --unused lists; `motet delete FILE` deletes a single one")
    with Client() as client:
        found = list(client.files.list(unused or None))
        narrator.say(files_table(found) if found else f"no {'unused ' if unused else ''}files")
        for file in found if delete else ():
            client.files.delete(file.id)
            narrator.say(f"{file.id} is deleted")


@app.command()
def doctor() -> None:
    """What is running, what is wrong, and how to mend it."""
    narrator, well = _narrator(), True
    for finding in examine():
        well = well and finding.well
        narrator.say(f"{'well ' if finding.well else 'WRONG'}  {finding.what}")
        if finding.mend:
            narrator.say(f"       {finding.mend}")
    if not well:
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """The JSON Schema of a spec, for editors: the first line `# yaml-language-server: $schema=spec.schema.json` names it."""
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


def main() -> None:
    """The entry point. Mistakes and refusals become a sentence on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app()
    except MotetError as error:
        Console(stderr=True, highlight=False).print(f"motet: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _code(error: MotetError) -> int:
    if isinstance(error, SpecError):
        return 2
    if isinstance(error, Unreachable | NoCredentials) or (isinstance(error, ApiError) and error.status == 401):
        return 3
    return 1
