"""Rows that a process beside the executor's reads, and the executor's end."""

import os
import signal
import threading

import pytest

from tests.worker.data.token_streams import APART
from tests.worker.inside import Inside
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.data.tokenising.tokenising_process import TokenisingProcess
from worker.pipe_messages import Stop

pytestmark = pytest.mark.usefixtures("measured_once")


def test_an_executor_that_ends_while_rows_are_read_leaves_the_reader_to_its_thread(fleet, placing, tmp_path, monkeypatch):
    """Its pipes were closed under that thread, whose error ended the process, at times before the loop's own was told."""
    died, executors, tokeniser = [], [], RowTokeniser()
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr("worker.executor.attached_placements.RowTokeniser", lambda: tokeniser)
    process = tokeniser._standby = TokenisingProcess(APART, yields=False)
    while not process.ready(60):
        pass
    real = TokenisingProcess.tokenise

    def tokenise(self, *parts):
        os.kill(self._child.pid, signal.SIGSTOP)  # it is at work until the executor has ended
        executors[0].handle_command(Stop(seconds=0))
        real(self, *parts)

    monkeypatch.setattr(TokenisingProcess, "tokenise", tokenise)
    Inside(fleet, tmp_path).run(placing({"learning_rate": [1e-3], "rank": [8], "batch_size": [4]}), prepare=executors.append)
    os.kill(process._child.pid, signal.SIGCONT)
    assert process._child.wait(60) == -signal.SIGKILL
    assert not died
