"""`motet push`: an adapter or a merged model brought to the hub; and the list of what was pushed."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import HubPushFailed
from motet.api.resources import HubPush
from motet.commands.common import Json, Limit, Output, first, winner_of
from motet.display.tables.adapter_tables import hub_pushes_table
from motet.specs.spec_file import SpecError


def push(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="A task (its winner), an adapter's or a merged model's id, or `last`.")
    ],
    repository: Annotated[str, typer.Argument(metavar="ORGANISATION/NAME", help="On the hub; made if it is missing.")],
    revision: Annotated[str | None, typer.Option(help="A branch; left out, main.")] = None,
    public: Annotated[bool, typer.Option("--public", help="To a repository that everybody reads.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    base_model: Annotated[str | None, typer.Option(help="The base's name on the hub, for the adapter's model card.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the hub's token; left out, the variable HF_TOKEN, or it is asked for.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is there.")] = True,
    json: Json = False,
) -> None:
    """Push an adapter or a merged model to the hub, by your own token there. The service does it; private, if not said."""
    output, token = Output(json), _token(token_file)
    with Client() as client:
        id = task if task.startswith(("adapter_", "merged_")) else winner_of(client, task, output)
        found = client.hub_pushes.create(id, repository, token, revision, False if public else None, message, base_model)
        if wait:
            with output.console_output.doing(f"pushing {id} to {found.repository} ({found.id})"):
                *_, found = client.hub_pushes.follow(found.id)
    ended = found
    output.give(ended, lambda: _said(ended))
    if ended.status == "failed":
        raise HubPushFailed(f"{ended.id} could not be pushed; what the hub has is not sent again")


def pushes(limit: Limit = 100, json: Json = False) -> None:
    """List pushes to the hub, the newest first. `motet delete PUSH` gives one up."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.hub_pushes.list())
    output.give(found, lambda: hub_pushes_table(found) if found else "nothing was pushed yet")


def _token(file: Path | None) -> str:
    """Never from the command line, which other users of the machine see."""
    if file is not None:
        try:
            said = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"--token-file {file} cannot be read: {error}") from None
        return _whole(said, f"--token-file {file}")
    if (said := os.environ.get("HF_TOKEN", "")).strip():
        return said.strip()
    if not sys.stdin.isatty():
        raise SpecError("the hub's token is missing: set the variable HF_TOKEN, or name a file by --token-file")
    return _whole(str(typer.prompt("token of the hub", hide_input=True)), "the token")


def _whole(said: str, where: str) -> str:
    if not said.strip():
        raise SpecError(f"{where} holds no token")
    return said.strip()


def _said(found: HubPush) -> str:
    if found.status == "succeeded":
        return f"{found.url} has it, as of commit {(found.commit or '')[:12]}"
    why = f"; {found.error.detail}" if found.error is not None else ""
    return f"{found.id} is {found.status}: {found.sent_bytes:,} of {found.bytes:,} bytes{why}"
