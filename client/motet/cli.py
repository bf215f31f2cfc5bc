"""The `motet` command line: which commands there are, and how mistakes and refusals become one sentence and an exit code."""

import json
import os
import signal
import sys
from typing import Annotated, Any

import typer

from contract.compatibility.version import VERSION
from motet.api.errors import ApiError, MotetError
from motet.commands import account, cluster, exit_codes, local, submitting, tasks
from motet.commands.adapters import asking, hub_pushes, stored
from motet.commands.admin import admin
from motet.commands.exit_codes import ExitCode
from motet.commands.files import files
from motet.commands.members import accounts, members, whoami
from motet.commands.models import models
from motet.commands.trackers import trackers
from motet.display.console_output import SafeConsole

_UsageError: type[Any] = typer.BadParameter.__mro__[1]  # typer's own, whatever package it lives in
_GROUPS = {
    "Train": (submitting.submit, submitting.estimate, submitting.preview, submitting.schema),
    "Tasks": (
        *(tasks.tasks, tasks.jobs, tasks.watch, tasks.logs, tasks.events, tasks.compare, tasks.evaluations),
        *(tasks.pause, tasks.resume, tasks.cancel, tasks.download, tasks.delete),
    ),
    "Adapters": (asking.ask, stored.merge, stored.merged, hub_pushes.push, hub_pushes.pushes),
    "Fleet": (cluster.cluster, cluster.schedule, cluster.nodes),
    "Account": (account.login, account.logout, account.use, account.services, account.dashboard, whoami, account.usage),
    "This machine": (local.up, local.demo, local.doctor),
}

_MEANT = {
    "show": "jobs",
    "status": "jobs",
    "list": "tasks",
    "ls": "tasks",
    "create": "submit",
    "train": "submit",
    "rm": "delete",
}


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"motet {VERSION}\n")
        raise typer.Exit


def _everywhere(
    service: Annotated[
        str | None, typer.Option(envvar="MOTET_SERVICE", help="One of `motet services`; left out, the one in use.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """LoRA fine-tuning as a service: many configurations at once over one frozen base model."""
    if service is not None:
        os.environ["MOTET_SERVICE"] = service  # where credentials.find looks for it


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, epilog=exit_codes.TEXT, callback=_everywhere)
for _group, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(rich_help_panel=_group)(_command)
app.add_typer(stored.adapters, name="adapters", rich_help_panel="Adapters")
app.add_typer(files, name="files", rich_help_panel="Stored")
app.add_typer(models, name="models", rich_help_panel="Fleet")
app.add_typer(account.keys, name="keys", rich_help_panel="Account")
app.add_typer(members, name="members", rich_help_panel="Account")
app.add_typer(accounts, name="service-accounts", rich_help_panel="Account")
app.add_typer(trackers, name="trackers", rich_help_panel="Account")
app.add_typer(admin, name="admin", rich_help_panel="Account")


def main() -> None:
    """The entry point. Mistakes and refusals become a sentence on stderr and an exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of this process
        getattr(sys, name).reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = typer.main.get_command(app).main(prog_name="motet", standalone_mode=False)
        sys.stdout.flush()
    except MotetError as error:
        _complain(str(error), error)
        code = exit_codes.of(error)
    except _UsageError as error:
        code = _mistyped(error)
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        code = _unread()
    except SystemExit as ended:  # what rich and typer make of a broken pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _unread()
    except OSError as error:
        _complain(f"cannot write: {error.strerror}{f': {error.filename}' if error.filename else ''}")
        _discard_output()
        code = ExitCode.FAILED
    sys.exit(int(code or 0))


def _unread() -> ExitCode:
    """The program that read the output has closed it, as `head` does: it has what it wanted."""
    _discard_output()
    return ExitCode.DONE


def _discard_output() -> None:
    """What is still in the buffer cannot be written, and the interpreter would try so at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(*_: object) -> None:
    """SIGTERM ends like Ctrl-C, so that a live picture gives the terminal back and a stack is stopped."""
    raise KeyboardInterrupt


def _mistyped(error: Any) -> ExitCode:
    path = error.ctx.command_path if error.ctx is not None else "motet"
    said = error.format_message().strip().replace("Value error, ", "")
    mistyped = said.split("'")[1] if said.startswith("No such command '") else ""
    if path == "motet" and mistyped in _MEANT:
        said += f"; `motet {_MEANT[mistyped]}` may be what you look for"
    if said:  # empty: called without arguments, and the help was printed
        _complain(f"{said.rstrip('.')}{'' if said.endswith('?') else ';'} `{path} --help` shows how it is written")
    return ExitCode.USAGE


def _complain(sentence: str, error: MotetError | None = None) -> None:
    """One sentence on standard error; to a program that asked for JSON, as JSON."""
    if "--json" not in sys.argv[1:]:
        SafeConsole(stderr=True, highlight=False).print(f"motet: {sentence}", style="red", markup=False, soft_wrap=True)
        return
    said: dict[str, object] = {"message": sentence}
    if isinstance(error, ApiError):
        said |= {"status": error.status, "code": error.code, "errors": [vars(one) for one in error.errors]}
    sys.stderr.write(json.dumps({"error": said}) + "\n")
