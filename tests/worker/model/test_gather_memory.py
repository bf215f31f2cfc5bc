"""Ranks of one host map what they gather into each other where NCCL can, and gather without it where it cannot."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from worker.model.sharding.gather_memory import GatherMemory
from worker.model.sharding.rank_collectives import RankCollectives, open_store

SECONDS = 20.0
CPU = torch.device("cpu")


def nccl(**config: int) -> SimpleNamespace:
    """What a build without CUDA lacks, and what NCCL can be told there."""
    return SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace(**config)))


class Refusing:
    """An NCCL that maps no memory."""

    def register_mem_pool(self, pool: object, symmetric: bool) -> None:
        raise RuntimeError("NCCL error: no such windows")


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def alone(request: pytest.FixtureRequest) -> Iterator[RankCollectives]:
    collectives = RankCollectives(open_store("127.0.0.1", 1, SECONDS), 0, 1, CPU, SECONDS, several_hosts=request.param)
    yield collectives
    collectives.close()


def gathers(collectives: RankCollectives) -> bool:
    part, whole = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    collectives.gather(whole, part)()
    return torch.equal(whole, part)


def test_a_cpu_has_nothing_to_map(alone: RankCollectives, caplog: pytest.LogCaptureFixture) -> None:
    memory = GatherMemory(0, 1, CPU)
    with memory.allocating():
        assert torch.zeros(8).device == CPU
    alone.share(memory)
    alone.unshare()
    assert gathers(alone)
    assert not caplog.records


@pytest.mark.parametrize(
    ("known", "told"),
    [({"cta_policy": 0}, {"cta_policy": 2}), ({}, {"min_ctas": 16, "max_ctas": 16})],
    ids=["engines", "programs"],
)
def test_memory_that_nccl_does_not_map_is_said_and_gathered_all_the_same(
    alone: RankCollectives,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    known: dict[str, int],
    told: dict[str, int],
) -> None:
    """Between hosts nobody asks NCCL."""
    memory, made = GatherMemory(0, 1, CPU), []
    memory.pool = object()  # type: ignore[assignment]
    monkeypatch.setattr("torch.distributed.new_group", lambda **given: made.append(given))
    monkeypatch.setattr("torch.distributed.ProcessGroupNCCL", nccl(**known), raising=False)
    monkeypatch.setattr(RankCollectives, "_backend", Refusing())
    monkeypatch.setattr(alone, "_device", torch.device("cuda"))
    alone.share(memory)
    warned = "does not map the ranks' memory into each other, so gathers take longer: NCCL error" in caplog.text
    assert [vars(given["pg_options"].config) for given in made] == ([] if alone._several_hosts else [told])
    assert ("by programs instead of copy engines" in caplog.text) == (not known and not alone._several_hosts)
    assert warned == (not alone._several_hosts)
    assert gathers(alone)
