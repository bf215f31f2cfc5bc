"""`motet trackers`: MLflow and W&B servers to which specs' `integrations` mirror tasks."""

from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import TrackingServer
from motet.commands.common import Json, Limit, Output, asked_secret, first
from motet.display.tables.account_tables import tracking_servers_table

trackers = typer.Typer(help="Servers of MLflow and Weights & Biases, to mirror tasks to.", invoke_without_command=True)

Which = Annotated[str, typer.Argument(metavar="SERVER", help="A tracking server's name or id.")]


@trackers.callback()
def list_trackers(context: typer.Context, limit: Limit = 100, json: Json = False) -> None:
    """List tracking servers, the newest first."""
    if context.invoked_subcommand is None:
        output = Output(json)
        with Client() as client:
            found = first(limit, client.tracking_servers.list())
        output.give(found, lambda: tracking_servers_table(found) if found else "none; `motet trackers add` adds one")


@trackers.command()
def add(
    name: Annotated[str, typer.Argument(help="By which specs name it.")],
    type: Annotated[str, typer.Option(help="mlflow or wandb.")] = "mlflow",
    url: Annotated[str | None, typer.Option(help="Where it is; of type wandb, left out: https://api.wandb.ai.")] = None,
    username: Annotated[str | None, typer.Option(help="Of MLflow; its password is asked for.")] = None,
    token: Annotated[bool, typer.Option("--token", help="Of MLflow: ask for a token.")] = False,
    json: Json = False,
) -> None:
    """Add a server. Its API key, token or password is asked for, or read from standard input, and never shown."""
    output = Output(json)
    credentials = None
    if type == "wandb":
        credentials = {"api_key": asked_secret("API key")}
    elif token:
        credentials = {"token": asked_secret("token")}
    elif username is not None:
        credentials = {"username": username, "password": asked_secret("password")}
    with Client() as client:
        made = client.tracking_servers.create(name, type, url, credentials)
    output.give(made, lambda: f"{made.name} is {made.url} ({made.type}); a spec's `integrations` names it")


@trackers.command()
def retry(server: Which, json: Json = False) -> None:
    """Try its mirrors again, also those that were given up."""
    output = Output(json)
    with Client() as client:
        tried = client.tracking_servers.change(_server(client, server).id)
    output.give(tried, lambda: f"the mirrors on {tried.name} are tried again")


@trackers.command()
def delete(server: Which, json: Json = False) -> None:
    """Delete a server. Tasks that name it train on and are mirrored no further; what is there stays there."""
    output = Output(json)
    with Client() as client:
        gone = _server(client, server)
        client.tracking_servers.delete(gone.id)
    output.give(gone, lambda: f"{gone.name} is deleted")


def _server(client: Client, named: str) -> TrackingServer:
    for one in client.tracking_servers.list():
        if named in (one.id, one.name):
            return one
    raise MotetError(f"there is no tracking server {named!r}; `motet trackers` lists them")
