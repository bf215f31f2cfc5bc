"""Commands that need this machine: up, demo, doctor; backups, restore and secret keys of the stack or deployment here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.api.client import Client
from motet.commands.admin import admin
from motet.commands.common import Json, Output
from motet.commands.exit_codes import ExitCode
from motet.local.demo import demo as run_demo
from motet.local.demo import demo_of_running
from motet.local.doctor import Finding, examine
from motet.local.operator_programs import address_of, operate
from motet.local.up import up as run_up

Port = Annotated[int | None, typer.Option(help="Port of the API; left out, 8321 or a free one.")]
Place = Annotated[
    str | None, typer.Argument(metavar="PLACE", help="A folder, or s3://bucket/prefix, gs://…, az://…; else MOTET_BACKUP_URL.")
]
BackupName = Annotated[str | None, typer.Option("--name", help="Of the backup, as `backups` lists them; left out, the newest.")]
Device = Annotated[str | None, typer.Option(help="What to train on: auto, cpu or cuda.")]


def up(
    host: Annotated[str | None, typer.Option(help="Address of the API; left out, this machine alone.")] = None,
    port: Port = None,
    workers: Annotated[int | None, typer.Option(min=0, help="How many workers.")] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="CPU slots of a worker without GPUs: each trains like one GPU.")
    ] = None,
    device: Device = None,
    api_processes: Annotated[int | None, typer.Option(min=1, help="How many processes serve the API.")] = None,
    transfer_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port at which workers get and put files (8323, or a free one); 0: the API's."),
    ] = None,
) -> None:
    """Run the whole of Motet here, until Ctrl-C. A second one attaches to the first, whose options hold."""
    given = {"--host": host, "--port": port, "--workers": workers, "--slots": slots, "--device": device}
    given |= {"--api-processes": api_processes, "--transfer-port": transfer_port}
    run_up(Output().console_output, _words(given))


def demo(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the adapter (default: the state folder).")] = None,
    port: Port = None,
    device: Device = None,
    running: Annotated[
        bool, typer.Option("--running", help="Start nothing: use the Motet of the state folder's keys.")
    ] = False,
) -> None:
    """Train sixteen configurations on real rows, check the best one with PEFT, and show the run in the dashboard."""
    words = _words({"--port": port, "--device": device})
    if running and words:
        raise typer.BadParameter("starts nothing, so it takes neither --port nor --device", param_hint="--running")
    if running:
        demo_of_running(Output().console_output, out)
    else:
        run_demo(Output().console_output, out, words)


def doctor(json: Json = False) -> None:
    """What is running, what is wrong, and how to mend it."""
    output, findings = Output(json), []
    for finding in examine():
        findings.append(finding)
        if not json:
            output.say(_told(finding))
    if json:
        output.give([vars(finding) for finding in findings], lambda: "")
    if not all(finding.well for finding in findings):
        raise typer.Exit(ExitCode.NO_SERVICE if findings[-1].no_service else ExitCode.FAILED)


@admin.command()
def backup(place: Place = None, json: Json = False) -> None:
    """Back up database and objects while they are in use: of the stack here, or of the deployment whose variables are set."""
    output = Output(json)
    found = _operate(output, "backing up", "backup", place)
    more = ", with its secrets" if found.get("with_secrets") else "; keep its secret key elsewhere"
    output.give(found, lambda: f"{found['of']} is backed up to {found['url']}{more}\n{_backup_words(found['backup'])}")


@admin.command()
def backups(
    place: Annotated[str | None, typer.Argument(metavar="PLACE", help="Left out, the newest, as the service tells.")] = None,
    json: Json = False,
) -> None:
    """List the backups that lie somewhere, the oldest first; or how old the service's newest one is."""
    output = Output(json)
    if place is None:
        with Client() as client:
            newest = client.admin.newest_backup()
        said = f"{newest.name}, taken {newest.taken_at:%Y-%m-%d %H:%M} UTC" if newest.taken_at else "no backup was ever taken"
        output.give(newest, lambda: said)
        return
    found = _operate(output, "reading", "backups", place)
    output.give(found, lambda: "\n".join(map(_backup_words, found["backups"])) or "no backups")


@admin.command()
def verify(place: Place = None, name: BackupName = None, json: Json = False) -> None:
    """Read all of a backup and compare it with its checksums. Changes nothing."""
    output = Output(json)
    found = _operate(output, "reading the backup", "verify", place, name)
    output.give(found, lambda: f"it is whole: {_backup_words(found['backup'])}")


@admin.command()
def restore(place: Place = None, name: BackupName = None, json: Json = False) -> None:
    """Bring a backup back: as the stack of a new state folder (MOTET_STATE_DIR), or into a deployment's empty database."""
    output = Output(json)
    found = _operate(output, "restoring", "restore", place, name)
    other = "\nits secret key is another than the backup's: what that one sealed (webhook secrets) cannot be read"
    output.give(
        found,
        lambda: f"{found['of']} is restored: {_backup_words(found['backup'])}{other if found['other_secret_key'] else ''}",
    )


@admin.command("rotate-key")
def rotate_key(json: Json = False) -> None:
    """Give the stack here a new secret key. Its next start seals everything anew under it."""
    output = Output(json)
    found = _operate(output, "changing the key", "rotate-key")
    when = "once it is started again" if found["running"] else "when it starts"
    output.give(found, lambda: f"{found['of']} has a new secret key {when}; the one before opens what it sealed for a day more")


@admin.command()
def reseal(json: Json = False) -> None:
    """Seal all secrets under the newest MOTET_SECRET_KEY, so that MOTET_SECRET_KEYS_BEFORE can be left out a day later."""
    output = Output(json)
    found = _operate(output, "sealing anew", "reseal")
    output.give(found, lambda: f"{found['secrets']} secrets are sealed under the newest key; a day from now the others can go")


@admin.command("move-storage")
def move_storage(
    target: Annotated[str, typer.Argument(metavar="PLACE", help="A folder, or s3://bucket/prefix, gs://…, az://…")],
    json: Json = False,
) -> None:
    """Copy all objects to another storage, in which the service then starts with MOTET_STORAGE_URL. Again copies the rest."""
    output = Output(json)
    found = _operate(output, "copying", "move-storage", target)
    output.give(found, lambda: f"copied {found['copied']} objects to {found['to']}; {found['there']} were there already")


def _operate(output: Output, doing: str, word: str, place: str | None = None, name: str | None = None) -> dict[str, Any]:
    with output.console_output.doing(doing):
        return operate(word, address_of(place) if place is not None else None, name)


def _backup_words(made: Mapping[str, Any]) -> str:
    return f"{made['name']}: {made['rows']:,} rows, {made['objects']:,} objects of {made['object_bytes']:,} bytes"


def _told(finding: Finding) -> str:
    mend = f"\n       {finding.mend}" if finding.mend else ""
    return f"{'ok   ' if finding.well else 'WRONG'}  {finding.what}{mend}"


def _words(given: Mapping[str, object]) -> list[str]:
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]
