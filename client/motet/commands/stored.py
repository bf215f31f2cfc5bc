"""Commands about what the service stores: files and adapters."""

from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables import adapters_table, files_table
from motet.specs.spec_file import SpecError


def files(
    upload: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, readable=True, help="Upload this file first; may be repeated."),
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Only those that no task names.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="With --unused: delete them.")] = False,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List uploaded files, the newest first. `motet delete FILE` deletes one."""
    if delete and not unused:
        raise SpecError("--delete deletes the files that --unused lists; `motet delete FILE` deletes a single one")
    output = Output(json)
    with Client() as client:
        for path in upload or []:
            with output.console_output.doing(f"uploading {path.name}"):
                client.files.upload(path)
        found = first(limit, client.files.list(unused or None))
        for file in found if delete else ():
            client.files.delete(file.id)
    output.give(found, lambda: files_table(found) if found else f"no {'unused ' if unused else ''}files")
    if delete and found:
        output.say(f"{len(found)} deleted")


def adapters(limit: Limit = 100, json: Json = False) -> None:
    """List adapters, the newest first. `motet download ADAPTER` fetches one, `motet delete ADAPTER` deletes it."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.adapters.list())
    output.give(found, lambda: adapters_table(found) if found else "no adapters yet")
