"""Commands about the stack on this machine: up, demo, doctor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from motet.commands.common import Json, Output
from motet.commands.exit_codes import ExitCode
from motet.local.demo import demo as run_demo
from motet.local.doctor import Finding, examine
from motet.local.up import up as run_up

Port = Annotated[int | None, typer.Option(help="Port of the API; left out, 8321 or a free one.")]
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
) -> None:
    """Run the whole of Motet here, until Ctrl-C. A second one attaches to the first, whose options hold."""
    given = {"--host": host, "--port": port, "--workers": workers, "--slots": slots, "--device": device}
    given |= {"--api-processes": api_processes}
    run_up(Output().console_output, _words(given))


def demo(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the adapter (default: the state folder).")] = None,
    port: Port = None,
    device: Device = None,
) -> None:
    """Train sixteen configurations on real rows, check the best one with PEFT, and show the run in the dashboard."""
    run_demo(Output().console_output, out, _words({"--port": port, "--device": device}))


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


def _told(finding: Finding) -> str:
    mend = f"\n       {finding.mend}" if finding.mend else ""
    return f"{'ok   ' if finding.well else 'WRONG'}  {finding.what}{mend}"


def _words(given: Mapping[str, object]) -> list[str]:
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]
