"""The streams that ranks map for a placement, from its preparation on."""

import os
import threading
from contextlib import suppress

import pytest

from tests.worker.corpus import rows
from tests.worker.inside import Inside
from tests.worker.replicas.test_replica_set import CALM, JOB, ranks, wide
from worker.data.node_cache import HEADER
from worker.data.tokenising.file_tokeniser import DataError
from worker.executor.preparation.executor_base import BaseUse
from worker.pipe_messages import Detach, PlacementEnded

pytestmark = pytest.mark.usefixtures("measured_once")


def streams_open() -> int:
    """How many the other rank holds open, so that none is evicted."""
    (pid,) = ranks()
    found = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{pid}/fd/{number}").endswith(HEADER)
    return found


@pytest.mark.parametrize("why", ["ended", "refused"])
def test_ranks_close_those_of_a_placement_that_does_not_begin(fleet, placing, tmp_path, monkeypatch, why):
    """It is ended while it is prepared, beside one that trains; or its rows are refused, before any other trains."""
    spec = {"early_exit": {**CALM, "eval_every": 400}, "training": {"max_steps": 400, "epochs": 100}}
    stays = wide(placing({**JOB, "learning_rate": [1e-3, 3e-3]}, **spec), "stays")
    leaves = wide(placing({**JOB, "learning_rate": [1e-3]}, rows(30, seed=3), **spec), "leaves")
    executors, opened, left, closed, real = [], [], threading.Event(), [], BaseUse.open_stream

    def open_stream(self, stream):
        placement = self._lease.placement_id
        if placement == "leaves" and why == "ended":
            executors[0].handle_command(Detach(placement_id="leaves"))
        if (placement, why) in (("leaves", "ended"), ("stays", "refused")):
            assert left.wait(60)
        real(self, stream)
        opened.append(streams_open())
        if placement == "leaves" and why == "refused":
            raise DataError("line 1 is wrong")

    def look(reported, report):
        if reported.placement is stays and len(opened) == 2 and not closed and streams_open() == 1:
            closed.append(True)
            fleet.end("stays")
            executors[0].handle_command(Detach(placement_id="stays"))

    monkeypatch.setattr(BaseUse, "open_stream", open_stream)
    inside = Inside(fleet, tmp_path)
    inside.on_news = lambda news: isinstance(news, PlacementEnded) and news.placement_id == "leaves" and left.set()
    fleet.on_report = look
    if why == "ended":
        inside.run(stays, joining=[leaves], prepare=executors.append)
    else:
        inside.run(leaves, stays, prepare=executors.append)
    assert opened == ([1, 2] if why == "ended" else [1, 1])
    assert closed, "before the other's end"
