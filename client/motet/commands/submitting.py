"""Commands about specs: submit, estimate, preview, schema."""

import json as jsons
import sys
from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.commands import invocation, tasks
from motet.commands.common import Json, Output
from motet.display.estimates import estimate_table
from motet.display.preview import drawn
from motet.specs import upload
from motet.specs.spec_file import json_schema, read

Spec = Annotated[Path, typer.Argument(help="A YAML file; examples/spec.yaml is one.")]


def submit(
    spec: Spec,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay and watch it train.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it has ended, without watching; for scripts.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take, and list its jobs.")] = False,
    json: Json = False,
) -> None:
    """Upload a spec's files and start its task."""
    if dry_run:
        estimate(spec, json)
        return
    output, draft = Output(json), read(spec)
    with Client() as client:
        task = upload.submit(client, draft, output.console_output)
        if watch:
            tasks.follow(client, task.id, output)
        elif wait:
            with tasks.going_on(task.id, output), output.console_output.doing(f"{task.id} is under way"):
                task = client.tasks.wait(task.id)
            output.give(task, lambda: task.id)
            tasks.finish(task, output)
        else:
            output.give(task, lambda: f"  {invocation.command()} watch {task.id}")


def estimate(spec: Spec, json: Json = False) -> None:
    """What a spec's task would take and when it would end, and its jobs. Nothing stays on the service."""
    output, draft = Output(json), read(spec)
    with Client() as client:
        whole, found = upload.estimate(client, draft, output.console_output)
    jobs = whole.jobs()
    output.give({"estimate": found, "jobs": jobs}, lambda: estimate_table(found, jobs))


def preview(
    spec: Spec,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=20, help="How many.")] = 5,
    json: Json = False,
) -> None:
    """A spec's first rows as its task would train on them: what is learned, what is cut. Nothing stays on the service."""
    output, draft = Output(json), read(spec)
    with Client() as client:
        found = upload.preview(client, draft, rows)
    output.give(found, lambda: drawn(found))


def schema(json: Json = False) -> None:
    """The JSON Schema of a spec, for editors: the first line `# yaml-language-server: $schema=spec.schema.json` names it."""
    sys.stdout.write(jsons.dumps(json_schema(), indent=2) + "\n")
