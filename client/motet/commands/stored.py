"""`motet adapters`: those that were trained or uploaded, and the upload of a PEFT folder."""

from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables import adapters_table

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
