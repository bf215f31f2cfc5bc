"""A process whose end is not seen, as that of one that hangs in a driver."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 60.0  # seconds


@contextmanager
def hanging() -> Iterator["subprocess.Popen[bytes]"]:
    """It has not ended before the block has."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "tests.worker.node.unseen_end"], bufsize=0, **pipes)
    assert process.stdout is not None
    tracer = int(json.loads(process.stdout.readline())["placement_id"])
    try:
        yield process
        assert process.poll() is None
    finally:
        os.kill(tracer, signal.SIGKILL)
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
