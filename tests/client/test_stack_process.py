"""What the command line reads of a stack's start, and says at its end."""

import io

import pytest
from motet.display.console_output import ConsoleOutput
from motet.local.stack_process import ready_of
from motet.local.up import stop
from rich.console import Console

READY = {"event": "ready", "api_url": "http://127.0.0.1:40123", "state_dir": "/state", "attached": False, "pids": {}}


def test_a_stack_says_that_its_port_was_taken():
    assert ready_of(READY).moved is None
    moved = ready_of(READY | {"instead_of_port": 8321}).moved
    assert moved == "Port 8321 is taken by another program, so Motet is at http://127.0.0.1:40123; --port chooses one."


class Ended:
    """A stack's process that ends when it is asked to."""

    def ask_to_stop(self):
        pass

    def events(self):
        return iter(())


@pytest.mark.parametrize(
    ("attached", "said"),
    [
        (True, "Detached. Motet goes on running where it was started."),
        (False, "Stopped. Nothing is left running; everything is kept for the next start."),
    ],
)
def test_who_only_attached_is_told_that_all_goes_on(attached, said):
    told = io.StringIO()
    stop(Ended(), ConsoleOutput(Console(file=told, width=200)), attached)
    assert told.getvalue().splitlines()[-1] == said
