"""Ranks of one host map what they gather into each other where NCCL can, and gather without it where it cannot."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from worker.model.sharding.gather_memory import GatherMemory
from worker.model.sharding.rank_collectives import RankCollectives, open_store

SECONDS = 20.0
CPU = torch.device("cpu")


class Nccl:
    """What a build without CUDA lacks."""

    class Options:
        def __init__(self) -> None:
            self.config = SimpleNamespace(cta_policy=0)


class Refusing:
    """An NCCL that maps no memory."""

    def register_mem_pool(self, pool: object, symmetric: bool) -> None:
        raise RuntimeError("NCCL error: no such windows")


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def alone(request: pytest.FixtureRequest) -> Iterator[RankCollectives]:
    collectives = RankCollectives(open_store("127.0.0.1", 0, 1, SECONDS), 0, 1, CPU, SECONDS, several_hosts=request.param)
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


def test_memory_that_nccl_does_not_map_is_said_and_gathered_all_the_same(
    alone: RankCollectives, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between hosts nobody asks NCCL."""
    memory, made = GatherMemory(0, 1, CPU), []
    memory.pool = object()  # type: ignore[assignment]
    monkeypatch.setattr("torch.distributed.new_group", lambda **given: made.append(given))
    monkeypatch.setattr("torch.distributed.ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(RankCollectives, "_backends", [Refusing()])
    monkeypatch.setattr(alone, "_device", torch.device("cuda"))
    alone.share(memory)
    warned = "does not map the ranks' memory into each other, so gathers take longer: NCCL error" in caplog.text
    configs = [vars(given["pg_options"].config) for given in made]
    assert configs == ([] if alone._several_hosts else [{"cta_policy": 0, "min_ctas": 16, "max_ctas": 16}, {"cta_policy": 2}])
    assert warned == (not alone._several_hosts)
    assert gathers(alone)
