"""Ranks of one host map what they gather into each other where NCCL can, and gather without it where it cannot."""

import logging
from collections.abc import Iterator

import pytest
import torch

from worker.model.sharding.gather_memory import GatherMemory
from worker.model.sharding.rank_collectives import RankCollectives, open_store

SECONDS = 20.0
CPU = torch.device("cpu")


class Refusing:
    """An NCCL that maps no memory."""

    def _get_backend(self, device: torch.device) -> "Refusing":
        return self

    def register_mem_pool(self, pool: object, symmetric: bool) -> None:
        raise RuntimeError("NCCL error: no such windows")


@pytest.fixture
def alone() -> Iterator[RankCollectives]:
    collectives = RankCollectives(open_store("127.0.0.1", 0, 1, SECONDS), 0, 1, CPU, SECONDS)
    yield collectives
    collectives.close()


def test_a_cpu_has_nothing_to_map(alone: RankCollectives, caplog: pytest.LogCaptureFixture) -> None:
    memory = GatherMemory(CPU)
    with memory.allocating():
        part, whole = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    alone.share(memory)
    alone.gather(whole, part)()
    assert torch.equal(whole, part)
    assert not caplog.records


def test_memory_that_nccl_does_not_map_is_said_and_gathered_all_the_same(
    alone: RankCollectives, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = GatherMemory(CPU)
    memory.pool = object()  # type: ignore[assignment]
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(alone, "_group", Refusing())
        alone.share(memory)
    assert "does not map the ranks' memory into each other, so gathers take longer: NCCL error" in caplog.text
    part, whole = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    alone.gather(whole, part)()
    assert torch.equal(whole, part)
