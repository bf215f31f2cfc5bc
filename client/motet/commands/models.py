"""`motet models`: the base models that tasks may name, and those that an admin adds: from the hub, or from a folder."""

from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import GpuFit, HubModel
from motet.commands.common import Json, Output
from motet.display.tables.fleet_tables import models_table

models = typer.Typer()
_STORED = {
    True: "its files are in storage, from which nodes fetch it",
    False: "its files are copied to storage; `motet models` says how far that is",
}


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context, json: Json = False) -> None:
    """List the base models that tasks may name; `motet models add` allows one of the hub, or uploads one."""
    if context.invoked_subcommand is not None:
        return
    output = Output(json)
    with Client() as client:
        found = list(client.models.list())
    ways = "`motet models add hf://organisation/name` allows one of the hub, `motet models add FOLDER` uploads one"
    output.give(found, lambda: models_table(found) if found else f"none is allowed yet; {ways}")


@models.command()
def add(
    source: Annotated[str, typer.Argument(help="hf://organisation/name, or a folder of this machine, which is uploaded.")],
    revision: Annotated[str | None, typer.Option(help="Of the hub: a branch, tag or commit; main, if left out.")] = None,
    name: Annotated[
        str | None, typer.Option(help="What tasks call it; left out, organisation/name, or the folder's name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of the hub: tell size, licence and fit, and change nothing.")
    ] = False,
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store", help="Of the hub: keep it in storage, from which nodes fetch it; left out, as it is."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Allow a base model of the hub, or upload one. Nodes fetch it when a task needs it. Needs an admin key."""
    output = Output(json)
    folder = None if source.startswith("hf://") else Path(source)
    if folder is not None and (revision is not None or dry_run or store is not None):
        raise MotetError("--revision, --dry-run and --store go with hf://organisation/name; a folder is uploaded as it is")
    with Client() as client:
        if folder is None:
            found = client.admin.add_model(source, revision or "main", name, dry_run, store)
            output.give(found, lambda: _told(found))
            return
        uploaded = client.admin.upload_model(folder, name or folder.resolve().name)
    output.give(
        uploaded,
        lambda: f"{uploaded.name} is in storage: {uploaded.parameters:,} parameters, revision {uploaded.revision[:12]}",
    )


@models.command("remove")
def remove_model(name: Annotated[str, typer.Argument(help="What tasks call it.")], json: Json = False) -> None:
    """Take a base model off the list, and its files out of storage. Adapters stay. Needs an admin key."""
    output = Output(json)
    with Client() as client:
        client.admin.remove_model(name)
    output.give({"name": name, "removed": True}, lambda: f"{name} is removed")


def _told(found: HubModel) -> str:
    terms = f"licence {found.license or 'not told'}{', gated' if found.gated else ''}"
    fits = [f"{fit.type}: {', '.join(_precisions(fit)) or 'too small'}" for fit in found.fits]
    return "\n".join(
        [
            f"{found.name}{' would be' if found.dry_run else ' is'} pinned at commit {(found.commit or '')[:12]}; {terms}",
            f"{found.parameters:,} parameters, {found.architecture}; each node fetches {found.bytes / 1e9:.2f} GB",
            *([] if found.storage is None else [_STORED[found.storage.status == "stored"]]),
            f"fits {'; '.join(fits)}" if fits else "no node is ready, so nothing is known about GPUs that it fits",
        ]
    )


def _precisions(fit: GpuFit) -> list[str]:
    return [*fit.precisions, *(f"{precision} over {gpus} GPUs" for precision, gpus in fit.sharded.items())]
