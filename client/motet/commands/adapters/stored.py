"""`motet adapters`: those that were trained or uploaded, and the upload of a PEFT folder. `motet merge`: an adapter added to
its base, waited for and fetched; and the list of what was merged."""

from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import MergedModel
from motet.commands.common import Json, Limit, Output, first, winner_of
from motet.display.tables.adapter_tables import adapters_table, merged_models_table

adapters = typer.Typer()


@adapters.callback(invoke_without_command=True)
def list_adapters(context: typer.Context, limit: Limit = 100, json: Json = False) -> None:
    """List adapters, the newest first. `motet download ADAPTER` fetches one, `motet delete ADAPTER` deletes it."""
    if context.invoked_subcommand is not None:
        return
    output = Output(json)
    with Client() as client:
        found = first(limit, client.adapters.list())
    output.give(found, lambda: adapters_table(found) if found else "no adapters yet")


@adapters.command()
def upload(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="As PEFT saves it, in safetensors.")],
    base: Annotated[str, typer.Option(help="The base that it is for, as `motet models` names it.")],
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    json: Json = False,
) -> None:
    """Upload a LoRA adapter, checked against its base: to ask it, or as `warm_start` of tasks."""
    output = Output(json)
    with Client() as client, output.console_output.doing(f"uploading {folder}"):
        made = client.adapters.upload(folder, base, name)
    output.give(made, lambda: f"{made.id}: for {made.base_model}, {made.bytes:,} bytes")


def merge(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task (its winner), an adapter's id, or `last`.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to make; left out, nothing is downloaded.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is ready; `motet download MERGED` fetches it.")] = True,
    max_shard_bytes: Annotated[int | None, typer.Option(min=1, help="Of a safetensors file; left out, 5 GB.")] = None,
    json: Json = False,
) -> None:
    """Add an adapter to its base: a model in bf16 that needs no adapter to be loaded."""
    output = Output(json)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):  # a merge takes minutes and gigabytes
        raise MotetError(f"{out} exists and is not an empty folder; name another with -o, or remove it. Nothing was merged")
    with Client() as client:
        adapter_id = task if task.startswith("adapter_") else winner_of(client, task, output)
        made = client.merged_models.create(adapter_id, max_shard_bytes)
        if wait or out is not None:
            with output.console_output.doing(f"merging {adapter_id} into {made.base_model} as {made.id}"):
                made = client.merged_models.wait(made.id)
        if out is not None:
            with output.console_output.doing(f"downloading {made.id}"):
                client.merged_models.download(made.id, out)
    output.give(made, lambda: _said(made, out))


def merged(limit: Limit = 100, json: Json = False) -> None:
    """List merged models, the newest first. `motet download MERGED` fetches one, `motet delete MERGED` deletes it."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.merged_models.list())
    output.give(found, lambda: merged_models_table(found) if found else "no merged models yet")


def _said(made: MergedModel, out: Path | None) -> str:
    if out is not None:
        return f"{made.id} is in {out}"
    if made.status != "ready":
        return f"{made.id} is {made.status}"
    until = f" until {made.expires_at:%Y-%m-%d}" if made.expires_at is not None else ""
    return f"{made.id} is ready{until}: {made.bytes:,} bytes; `motet download {made.id}` fetches it"
