"""The process of a rank on this host: one that does not end, though it was killed, holds nobody up."""

import logging
import os
import signal
import threading

import pytest

from tests.worker.processes import children
from worker import killed_process
from worker.replicas.ranks import rank_start
from worker.replicas.ranks.rank_start import LocalRank
from worker.replicas.ranks.shared_host_memory import SharedHostMemory

PATIENCE = 60.0


def test_a_killed_rank_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its end is not seen while another process traces it: as of one that hangs in a driver."""
    monkeypatch.setattr(rank_start, "RANK_MODULE", "tests.worker.node.unseen_end")
    monkeypatch.setattr(killed_process, "DEVICE_SECONDS", 0.1)
    reading, writing = os.pipe()
    stdout = os.dup(1)
    os.dup2(writing, 1)  # by which it tells that it is traced
    try:
        rank = LocalRank({}, SharedHostMemory(lends=False))
    finally:
        os.dup2(stdout, 1)
        for each in (stdout, writing):
            os.close(each)
    assert os.read(reading, 1), "it is traced"
    os.close(reading)
    (tracer,) = children(rank.pid)
    closing = threading.Thread(target=rank.close, daemon=True)
    try:
        with caplog.at_level(logging.ERROR, "worker.replicas.ranks"):
            closing.start()
            closing.join(PATIENCE)
        assert not closing.is_alive()
        assert f"rank (pid {rank.pid}) was killed and has not ended" in caplog.text
        assert not rank.ended
    finally:
        os.kill(tracer, signal.SIGKILL)
    assert rank._process.wait(PATIENCE) == -signal.SIGKILL
