"""A rank whose device fails as MOTET_TEST_FAULT says: `no_memory:TOKENS` for longer passes, or `broken`. A real one else."""

import os

import pytest

from worker.model.plain.trainer import OutOfMemory, Trainer
from worker.replicas.ranks.rank_main import main

MODULE = "tests.worker.replicas.faulty_rank"
VARIABLE = "MOTET_TEST_FAULT"


def fail(fault: str, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """In this process; with `monkeypatch` until the test's end."""
    real = Trainer.train
    kind, _, limit = fault.partition(":")

    def train(self, segments, *form):
        tokens = sum(example.length for segment in segments for example in segment.examples)
        if kind == "broken":
            raise RuntimeError("this device is gone")
        if tokens > int(limit):
            self.arena.grad.fill_(float("nan"))
            raise OutOfMemory(tokens)
        return real(self, segments, *form)

    if monkeypatch is not None:
        monkeypatch.setattr(Trainer, "train", train)
    else:
        Trainer.train = train


if __name__ == "__main__":
    fail(os.environ[VARIABLE])
    main()
