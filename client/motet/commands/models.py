"""`motet models`: the base models that tasks may name, and those of the hub that an admin adds."""

from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.resources import HubModel
from motet.commands.common import Json, Output
from motet.display.tables import models_table

models = typer.Typer()


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context, json: Json = False) -> None:
    """List the base models that tasks may name; `motet models add` allows one of the hub."""
    if context.invoked_subcommand is not None:
        return
    output = Output(json)
    with Client() as client:
        found = list(client.models.list())
    ways = "`motet models add hf://organisation/name` allows one of the hub, `motet admin model` a folder"
    output.give(found, lambda: models_table(found) if found else f"none is allowed yet; {ways}")


@models.command()
def add(
    source: Annotated[str, typer.Argument(help="hf://organisation/name")],
    revision: Annotated[str, typer.Option(help="A branch, tag or commit; pinned to its commit.")] = "main",
    name: Annotated[str | None, typer.Option(help="What tasks call it; left out, organisation/name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell size, licence and fit, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Allow a base model of the hub. Nodes fetch it when a task needs it. Needs an admin key."""
    output = Output(json)
    with Client() as client:
        found = client.admin.add_model(source, revision, name, dry_run)
    output.give(found, lambda: _told(found))


def _told(found: HubModel) -> str:
    terms = f"licence {found.license or 'not told'}{', gated' if found.gated else ''}"
    fits = [f"{fit.type}: {', '.join(fit.precisions) or 'too small'}" for fit in found.fits]
    return "\n".join(
        [
            f"{found.name}{' would be' if found.dry_run else ' is'} pinned at commit {(found.commit or '')[:12]}; {terms}",
            f"{found.parameters:,} parameters, {found.architecture}; each node fetches {found.bytes / 1e9:.2f} GB",
            f"fits {'; '.join(fits)}" if fits else "no node is ready, so nothing is known about GPUs that it fits",
        ]
    )
