"""A rank that loads says so, also where the system starts no more threads: it would be lost after ten minutes of silence."""

import socket
from pathlib import Path

import pytest
import torch

from contract.messages.placement_messages import BaseModelRef
from tests.worker.conftest import Lacking
from worker.replicas import load_progress
from worker.replicas.ranks.rank_link import HostRankLink
from worker.replicas.ranks.rank_messages import PassDone
from worker.replicas.ranks.rank_server import RankServer
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.settings import Settings


def test_without_a_thread_it_says_so_after_each_layer(
    lacking: Lacking, deep_base: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_progress, "TELL_SECONDS", 0.0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    lacking.add("link")
    ours, its = (HostRankLink(end) for end in socket.socketpair())
    server = RankServer(ours, SharedHostMemory(lends=False))
    threads = torch.get_num_threads()
    settings = Settings(api_url="http://127.0.0.1:1", worker_dir=tmp_path)
    server.load(deep_base, torch.device("cpu"), threads, settings, None, 1)
    for _ in range(5):
        assert its.waits(0)
        assert its.receive() == PassDone()
    for end in (ours, its):
        end.close()
