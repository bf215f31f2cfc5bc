"""`motet up`: runs the whole stack in the foreground. Starts it or attaches to it, prints its events, stops it on Ctrl-C."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from motet.api.client import Client
from motet.api.credentials import credentials_file
from motet.api.errors import MotetError
from motet.commands.invocation import command
from motet.display.console_output import ConsoleOutput
from motet.local import example_files
from motet.local.stack_process import Event, Ready, Stack, StackFailed, ready_of


def start(stack: Stack, output: ConsoleOutput) -> Ready:
    """Print the start's progress until the stack is ready. Raises StackFailed."""
    now = "starting"
    with output.doing(lambda: now):
        for event in stack.events():
            now = _doing(event)
            if (ready := ready_of(event)) is not None:
                return ready
    raise StackFailed("the stack ended before it was ready")


def up(output: ConsoleOutput, arguments: list[str]) -> None:
    """Run until Ctrl-C, or until a stack that this process attached to ends."""
    attached = False
    with Stack(arguments) as stack:
        try:
            ready = start(stack, output)
            attached = ready.attached
            _introduce(output, ready)
            for event in stack.events():
                _tell(output, event)
        except KeyboardInterrupt:
            stop(stack, output, attached)


def stop(stack: Stack, output: ConsoleOutput, attached: bool = False) -> None:
    """Stop the stack, or leave it if this process only attached to it, and print so; another Ctrl-C makes it hurry."""
    now = "stopping"
    with output.doing(lambda: now):
        stack.ask_to_stop()
        while True:
            try:
                for event in stack.events():
                    now = _doing(event)
                break
            except KeyboardInterrupt:
                stack.ask_to_stop()
    stopped = "Stopped. Nothing is left running; everything is kept for the next start."
    output.say("Detached. Motet goes on running where it was started." if attached else stopped)


def _doing(event: Event) -> str:
    name = event.get("name", "")
    words = {"starting": f"starting {name}", "started": f"{name} is ready", "finished": f"{name} is done"}
    return words.get(event["event"], f"{event['event']} {name}".strip())


def _introduce(output: ConsoleOutput, ready: Ready) -> None:
    """Print what runs where, and what to do next."""
    with Client(service="local") as client:
        base = _base(client)
        link = client.account.sign_in_link().url
        kept = list(zip(range(100), client.tasks.list(), strict=False))
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("dashboard", f"{link}  (once, within 15 minutes)"),
        ("API", f"{ready.api_url}  (its reference: /docs)"),
        ("keys", f"{credentials_file()}"),
        ("logs", f"{ready.state_dir / 'logs'}"),
        ("base model", base),
    ):
        facts.add_row(Text(f"  {name}", style="dim"), Text(value, overflow="fold"))
    output.say(Text("Motet runs already; attached to it." if ready.attached else "Motet is up.", style="bold green"))
    if ready.moved is not None:
        output.say(Text(ready.moved, style="yellow"))
    output.say(facts)
    if kept:
        last = kept[0][1]
        number = f"{len(kept)}{'+' if len(kept) == 100 else ''} task{'s' if len(kept) > 1 else ''}"
        output.say(f"\nKept from before: {number}, the latest {last.id}, {last.status}.")
        output.say(f"  {command()} jobs {last.id}")
    output.say("\nIn another terminal:")
    output.say(
        f"  {command()} submit {_shown(example_files.folder() / 'spec.yaml')} --watch" if base else f"  {command()} tasks"
    )
    output.say(f"\nCtrl-C {'leaves it running' if ready.attached else 'stops everything'}.")


def _base(client: Client) -> str:
    try:
        model = example_files.register_base(client)
    except MotetError as error:
        return f"none registered: {error}"
    return f"{model.name}, {model.parameters:,} parameters"


def _shown(path: Path) -> str:
    """The path relative to the working folder if that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _tell(output: ConsoleOutput, event: Event) -> None:
    """Print one event of a running stack."""
    match event["event"]:
        case "died":
            output.say(Text(f"{event['name']} {event['how']}; it is started again. Its log: {event['log']}", style="yellow"))
        case "restarted":
            output.say(f"{event['name']} runs again (pid {event['pid']})")
        case "stopped":
            output.say("The stack has stopped.")
