"""Rows that are read beside the executor's loop: what they hold up, and its end."""

import os
import signal
import threading

import pytest

from tests.worker.data.token_streams import APART
from tests.worker.inside import Inside
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.data.tokenising.tokenising_process import TokenisingProcess
from worker.executor.preparation.placement_preparation import Preparation
from worker.pipe_messages import PlacementEnded, Stop

SPACE = {"learning_rate": [1e-3], "rank": [8], "batch_size": [4]}
pytestmark = pytest.mark.usefixtures("measured_once")


def test_an_executor_that_ends_while_rows_are_read_leaves_the_reader_to_its_thread(fleet, placing, tmp_path, monkeypatch):
    """Its pipes were closed under that thread, whose error ended the process, at times before the loop's own was told."""
    died, executors, tokeniser = [], [], RowTokeniser()
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr("worker.executor.attached_placements.RowTokeniser", lambda: tokeniser)
    process = TokenisingProcess(APART, yields=False)
    tokeniser._idle.append(process)
    while not process.ready(60):
        pass
    real = TokenisingProcess.tokenise

    def tokenise(self, *parts):
        os.kill(self._child.pid, signal.SIGSTOP)  # it is at work until the executor has ended
        executors[0].handle_command(Stop(seconds=0))
        real(self, *parts)

    monkeypatch.setattr(TokenisingProcess, "tokenise", tokenise)
    Inside(fleet, tmp_path).run(placing(SPACE), prepare=executors.append)
    os.kill(process._child.pid, signal.SIGCONT)
    assert process._child.wait(60) == -signal.SIGKILL
    assert not died


def test_a_neighbour_whose_rows_take_long_holds_up_nobody(fleet, placing, tmp_path, monkeypatch):
    slow, quick = placing(SPACE, training={"max_steps": 2}), placing(SPACE, training={"max_steps": 2})
    ended, rows, inside = threading.Event(), Preparation._rows, Inside(fleet, tmp_path)

    def read(self, used):
        if self._placement.placement_id == slow.placement_id:
            assert ended.wait(60), "the other waits for these rows"
        return rows(self, used)

    def on_news(news):
        if isinstance(news, PlacementEnded) and news.placement_id == quick.placement_id:
            ended.set()

    monkeypatch.setattr(Preparation, "_rows", read)
    inside.on_news = on_news
    for reported in inside.run(slow, quick):
        assert len(reported.ended) == 1
