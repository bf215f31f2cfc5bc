"""The loading of a base is told, and the ranks of a sharded one load beside the first."""

import logging
import threading

import pytest
import torch

from tests.worker.fleet import JOIN_TOKEN
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.processes import gone
from tests.worker.replicas.test_replica_set import CALM, JOB
from worker.pipe_messages import ExecutorProgress
from worker.replicas import load_progress
from worker.replicas.load_progress import LoadProgress
from worker.replicas.ranks import rank_group
from worker.replicas.ranks.rank_group import RankGroup
from worker.replicas.ranks.rank_process import RankLost, RankProcess
from worker.settings import Settings

GB = 10**9


def test_a_long_load_is_told_each_second_and_logged_each_ten(monkeypatch, caplog):
    now, told = [100.0], list[str]()
    monkeypatch.setattr(load_progress, "boot_now", lambda: now[0])
    progress = LoadProgress("base model large", told.append)
    with caplog.at_level(logging.INFO):
        for layer in range(80):
            now[0] += 0.3
            progress(layer * GB, 80 * GB)
        progress(80 * GB, 80 * GB)
    assert told[:2] == ["base model large: 3.0 GB of 80.0 GB loaded", "base model large: 7.0 GB of 80.0 GB loaded"]
    assert len(told) == 20
    assert [record.message for record in caplog.records] == [
        "base model large: 33.0 GB of 80.0 GB loaded",
        "base model large: 67.0 GB of 80.0 GB loaded",
        "base model large: 80.0 GB loaded in 24.0 s",
    ]


def test_a_short_load_tells_nothing_and_is_logged_once(caplog):
    told = list[str]()
    progress = LoadProgress("base model small", told.append)
    with caplog.at_level(logging.INFO):
        for loaded in range(3):
            progress(loaded, 2)
    assert not told
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("measured_once")
def test_the_service_is_told_how_far_a_base_is_loaded_until_it_is(fleet, deep_base, tmp_path, monkeypatch):
    inside, came, load = Inside(fleet, tmp_path), threading.Event(), RankGroup.load

    def slow(self, ref, devices, settings, generates, tell, hosts):
        tell("half of it")
        assert came.wait(60)
        return load(self, ref, devices, settings, generates, tell, hosts)

    def heard(news):
        if isinstance(news, ExecutorProgress) and "half of it" in news.loading.values():
            came.set()

    monkeypatch.setattr(RankGroup, "load", slow)
    inside.on_news = heard
    placement = placer(fleet, deep_base)({**JOB, "learning_rate": [1e-3]}, early_exit=CALM, training={"max_steps": 2})
    (reported,) = inside.run(placement)
    assert reported.ended
    assert not [one.loading for one in inside.news if isinstance(one, ExecutorProgress)][-1]


@pytest.mark.parametrize("mode", ["always", "never"])
def test_ranks_of_a_sharded_base_load_beside_the_first_and_those_of_copies_after_it(deep_base, tmp_path, monkeypatch, mode):
    order, told, begin, load_base = list[str](), list[str](), RankProcess.begin, rank_group.load_base

    def began(self, name, *args, **more):
        order.append(name)
        return begin(self, name, *args, **more)

    def first(*args):
        order.append("first")
        loaded = load_base(*args)
        order.append("first is there")
        return loaded

    monkeypatch.setattr(load_progress, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(RankProcess, "begin", began)
    monkeypatch.setattr(rank_group, "load_base", first)
    settings = Settings(
        api_url="http://nowhere", join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_threads=1, worker_sharding=mode
    )
    group = RankGroup(lambda silent: None)
    group.load(deep_base, [torch.device("cpu")] * 2, settings, tell=told.append)
    group.close()
    sharded = ["load", "first", "first is there", "connect"]
    assert order == (sharded if mode == "always" else ["first", "first is there", "load"])
    assert told[0] == "base model tiny: its weights are being read and checked"
    assert told[-1] == "base model tiny: loaded on the first of 2 devices; the others follow"
    layers = [float(sentence.split()[3]) for sentence in told[1:-1]]
    assert len(layers) == 6, "after each layer, and at the end"
    assert layers == sorted(layers)


def test_a_rank_that_ends_while_the_first_loads_ends_the_load_at_the_next_layer(deep_base, tmp_path, monkeypatch):
    ranks, layers = list[RankProcess](), list[str]()
    begin = RankProcess.begin

    def began(self, name, *args, **more):
        ranks.append(self)
        return begin(self, name, *args, **more)

    def tell(sentence):
        if "loaded" in sentence:
            layers.append(sentence)
            ranks[0].kill()
            assert gone(ranks[0].pid)

    monkeypatch.setattr(load_progress, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(RankProcess, "begin", began)
    settings = Settings(
        api_url="http://nowhere", join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_threads=1, worker_sharding="always"
    )
    group = RankGroup(lambda silent: None)
    with pytest.raises(RankLost, match=r"ranks \[1\] have ended"):
        group.load(deep_base, [torch.device("cpu")] * 2, settings, tell=tell)
    assert len(layers) == 1
    assert ranks[0].ended
