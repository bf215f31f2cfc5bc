"""`python -m deploy.devstack`: runs the stack in the foreground and prints events as JSON lines on stdout.

Events: starting, started, finished {name}; ready {api_url, state_dir, attached, pids}; died {name, how, log}; restarted {name,
pid}; stopping {name}; stopped; failed {message, fix}. Exit code 0 after a stop, 1 after failed.

If a stack of the same state folder already runs, this process attaches: it starts nothing, prints ready with attached true, and
stays until it is stopped or the other stack ends. It fails where it was given other options than that stack runs with.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from types import FrameType
from typing import Any

from contract.processes.local_stack import state_folder
from deploy.devstack.stack import Options, Stack
from deploy.devstack.stack_errors import StackError, trouble_of
from deploy.devstack.state_folder import State
from deploy.devstack.supervisor import StopAsked, Supervisor

_POLL_SECONDS = 0.1


def emit(event: dict[str, Any]) -> None:
    """Print one event. A closed stdout does not stop the stack."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of this process


def read_options() -> tuple[Options, bool]:
    """The stack's options, and whether to stop when standard input closes."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.devstack", description="Motet on one machine, embedded servers included."
    )
    port = os.environ.get("MOTET_PORT")
    parser.add_argument("--host", default=os.environ.get("MOTET_HOST", "127.0.0.1"), help="address of the API (%(default)s)")
    parser.add_argument("--port", type=int, default=port, help="port of the API (8321, or a free one where that is taken)")
    parser.add_argument("--workers", type=int, default=1, help="how many workers, each a node of its own (%(default)s)")
    parser.add_argument("--slots", type=int, help="how many CPU slots a worker without GPUs offers")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="what workers train on")
    parser.add_argument("--api-processes", type=int, help="how many processes serve the API")
    parser.add_argument(
        "--transfer-port",
        type=int,
        default=os.environ.get("MOTET_TRANSFER_PORT") or None,
        help="port at which workers get and put files (8323, or a free one where that is taken; 0: the API's)",
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when standard input closes")
    chosen = parser.parse_args()
    if chosen.workers < 0:
        parser.error(f"--workers must be 0 or more, not {chosen.workers}")
    if chosen.slots is not None and chosen.slots < 1:
        parser.error(f"--slots must be 1 or more, not {chosen.slots}")
    if chosen.port is not None and not 0 < chosen.port < 65536:
        parser.error(f"--port must be between 1 and 65535, not {chosen.port}")
    if chosen.transfer_port is not None and not 0 <= chosen.transfer_port < 65536:
        parser.error(f"--transfer-port must be between 0 and 65535, not {chosen.transfer_port}")
    if chosen.api_processes is not None and chosen.api_processes < 1:
        parser.error(f"--api-processes must be 1 or more, not {chosen.api_processes}")
    named = {name: value for name, value in vars(chosen).items() if name != "stop_on_eof"}
    return Options(**named), chosen.stop_on_eof


def unmet(options: Options, running: dict[str, Any]) -> list[str]:
    """The options that were given, and that the running stack does not run with."""
    given = {name: value for name, value in asdict(options).items() if value != getattr(Options(), name)}
    runs = running.get("options", {})
    return [f"--{name.replace('_', '-')} {value}" for name, value in given.items() if runs.get(name) != value]


def own(state: State, options: Options) -> None:
    """Start the stack and supervise it until told to stop."""
    stack = Stack(state, options)
    try:
        with Supervisor(emit) as supervisor:
            stack.start(supervisor)

            def description() -> dict[str, Any]:
                said = {"api_url": stack.api_url, "state_dir": str(state.folder), "pids": supervisor.pids}
                said["options"] = asdict(options) | {"port": stack.port, "transfer_port": stack.transfer_port or 0}
                return said | ({"instead_of_port": stack.instead_of} if stack.instead_of is not None else {})

            state.announce(description())
            emit({"event": "ready", "attached": False, **description()})
            supervisor.watch(lambda: state.announce(description()))
    finally:
        state.forget()
        stack.sweep()


def attach(state: State, options: Options) -> bool:
    """Wait until the stack that owns the folder ends. Returns False if it ended before it was ready: then this process may own
    the folder. Raises StackError if it runs with other options than were given."""
    while (running := state.running) is None:
        if state.lock():
            return False
        time.sleep(_POLL_SECONDS)  # polled: the other process's start sends no event
    if others := unmet(options, running):
        fix = "stop it first, or leave these out to attach to it; MOTET_STATE_DIR names another folder for a second one"
        raise StackError(f"Motet runs already at {running['api_url']}, without {' '.join(others)}", fix)
    emit({"event": "ready", "attached": True, **running})
    state.await_owner()
    return True


def stop_at_eof() -> None:
    """Send this process SIGTERM once standard input closes."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def on_stop(number: int, frame: FrameType | None) -> None:
    raise StopAsked


def main() -> int:
    options, stop_on_eof = read_options()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_stop)
    if stop_on_eof:
        stop_at_eof()
    try:
        state = State(state_folder())
        if state.lock() or not attach(state, options):
            own(state, options)
    except StopAsked:
        pass
    except (StackError, OSError) as error:
        trouble = trouble_of(error) if isinstance(error, OSError) else error
        emit({"event": "failed", "message": trouble.message, "fix": trouble.fix})
        return 1
    emit({"event": "stopped"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
