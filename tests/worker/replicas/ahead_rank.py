"""A rank whose device takes a step before it is through with the last, as a GPU does: on a CPU each step is over when it is
launched, and its losses are read later all the same. It tells of each step at once."""

import pytest

from worker.model.plain.trainer import Trainer
from worker.replicas.ranks import rank_server
from worker.replicas.ranks.rank_main import main


def launch_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and in its ranks, until the test's end."""
    monkeypatch.setattr(Trainer, "launches_ahead", True)
    monkeypatch.setattr("worker.replicas.ranks.rank_start.RANK_MODULE", "tests.worker.replicas.ahead_rank")


if __name__ == "__main__":
    Trainer.launches_ahead, rank_server.TELL_SECONDS = True, 0.0
    main()
