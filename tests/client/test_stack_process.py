"""What the command line reads of a stack's start."""

from motet.local.stack_process import ready_of

READY = {"event": "ready", "api_url": "http://127.0.0.1:40123", "state_dir": "/state", "attached": False, "pids": {}}


def test_a_stack_says_that_its_port_was_taken():
    assert ready_of(READY).moved is None
    moved = ready_of(READY | {"instead_of_port": 8321}).moved
    assert moved == "Port 8321 is taken by another program, so Motet is at http://127.0.0.1:40123; --port chooses one."
