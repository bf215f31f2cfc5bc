"""The ranks of an executor, started and ended."""

import errno
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from contract.messages.placement_messages import BaseModelRef
from tests.worker.conftest import Lacking
from tests.worker.fleet import JOIN_TOKEN
from worker.replicas.base_loader import Crowded
from worker.replicas.ranks import rank_start
from worker.replicas.ranks.rank_group import RankGroup
from worker.settings import Settings

MEANWHILE = 0.5  # seconds that another thread has, at most


class Rank:
    def __init__(self) -> None:
        self.closed, self.killed = 0, False

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed += 1


def test_all_are_killed_before_one_that_hangs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group, ranks = RankGroup(lambda seconds: None), [Rank(), Rank(), Rank()]
    seen = list[bool]()
    for rank in ranks:
        monkeypatch.setattr(rank, "close", lambda: seen.append(all(rank.killed for rank in ranks)))
    group._ranks = list(ranks)  # type: ignore[arg-type]
    group.close()
    assert seen == [True, True, True]


def test_two_threads_that_end_them_at_once_end_each_once() -> None:
    """The loop at its end, and the preparation whose load fails for it, which comes just after the loop has seen that there is
    one left."""
    group, rank = RankGroup(lambda seconds: None), Rank()
    other = threading.Thread(target=group.close)

    class Ranks(list[Rank]):
        def __len__(self) -> int:
            there = super().__len__()
            if threading.current_thread() is not other and not other.ident:
                other.start()
                other.join(MEANWHILE)
            return there

    group._ranks = Ranks([rank])  # type: ignore[assignment]
    group.close()
    other.join()
    assert rank.closed == 1


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(api_url="http://there", join_token=JOIN_TOKEN, worker_dir=folder, worker_device="cpu", **more)


def refused(*given: object, **options: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_base_whose_ranks_the_system_does_not_start_is_crowded_out(
    tiny_base: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its placement is given back. RankLost would end the executor, and all that is prepared there."""
    group, real = RankGroup(lambda seconds: None), subprocess.Popen
    monkeypatch.setattr(rank_start.subprocess, "Popen", refused)
    with pytest.raises(Crowded, match=r"base model tiny: a rank could not be started: .* temporarily unavailable"):
        group.load(tiny_base, [torch.device("cpu")] * 2, settings(tmp_path))
    monkeypatch.setattr(rank_start.subprocess, "Popen", real)
    loaded = group.load(tiny_base, [torch.device("cpu")] * 2, settings(tmp_path))
    assert [rank.ended for rank in loaded.ranks] == [False]
    group.close()


@pytest.mark.parametrize("thread", ["revision", "rank watch"])
def test_a_base_for_which_the_system_starts_no_thread_is_crowded_out(
    deep_base: BaseModelRef, tmp_path: Path, lacking: Lacking, thread: str
) -> None:
    lacking.add(thread)
    group = RankGroup(lambda seconds: None)
    with pytest.raises(Crowded, match="base model tiny: can't start new thread; something else has all"):
        group.load(deep_base, [torch.device("cpu")] * 2, settings(tmp_path, worker_sharding="always"))
    assert not group._ranks
