"""Token streams on disk: the same tokens as read by hand, found again, made whole or not at all, and bounded."""

import multiprocessing
import os
import signal
import threading
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contract.task_spec import Objective
from tests.worker import corpus
from tests.worker.data.token_streams import DPO, MIXED, SFT, kept, nothing, same
from worker.data import token_cache
from worker.data.node_cache import HEADER, NodeCache
from worker.data.token_cache import stream_of
from worker.data.tokenising.file_tokeniser import DataError
from worker.executor.placement.placement_lease import LeaseNotHeld


def never(*_: object) -> Path:
    raise AssertionError("the stream is here already")


@pytest.fixture
def cache(tmp_path) -> NodeCache:
    return NodeCache(tmp_path / "tenants")


def test_a_stream_holds_what_the_reader_reads(cache):
    file, fetch = kept(cache, MIXED)
    made = stream_of(file, SFT, fetch, nothing)
    same(made, SFT, MIXED)
    assert made.skipped == 1
    assert made.truncated >= 1
    assert made.largest_token == max(int(made.example(at).tokens.max()) for at in range(made.rows))
    pairs = [{"prompt": f"say {n}", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(20)]
    file, fetch = kept(cache, pairs)
    same(stream_of(file, DPO, fetch, nothing), DPO, pairs)


def test_what_was_tokenised_is_found_again_and_checked(cache, monkeypatch):
    file, fetch = kept(cache, MIXED)
    made = stream_of(file, SFT, fetch, nothing)
    monkeypatch.setattr(token_cache, "tokenise", never)
    assert stream_of(file, SFT, never, nothing).digest == made.digest
    other_tenant, _ = kept(cache, MIXED, "t2")
    for changed in (
        (other_tenant, SFT),
        (file, replace(SFT, max_seq_len=41)),
        (file, replace(SFT, fingerprint="another")),
        (file, replace(SFT, objective=Objective(turns="last"))),
        (file, replace(SFT, created_at=datetime(2026, 1, 1, tzinfo=UTC))),
    ):
        with pytest.raises(AssertionError, match="here already"):
            stream_of(*changed, never, nothing)


@pytest.mark.parametrize("part", ["tokens", "labels", "counts", "lengths", "hashes", HEADER])
@pytest.mark.parametrize("harm", ["flip", "shorten", "remove"])
def test_a_damaged_stream_is_made_anew(cache, part, harm):
    file, fetch = kept(cache, MIXED[:10])
    made = stream_of(file, SFT, fetch, nothing)
    path = file.streams / SFT.key / part
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(content if harm == "flip" else content[:-1])
    fetched = []
    again = stream_of(file, SFT, lambda: fetched.append(1) or fetch(), nothing)
    assert fetched == [1]
    assert again.digest == made.digest
    same(again, SFT, MIXED[:10])


def test_tokenising_ends_between_batches_and_leaves_nothing(cache):
    file, fetch = kept(cache, corpus.rows(2000))
    ticks = []

    def on_progress() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            raise LeaseNotHeld("over")

    with pytest.raises(LeaseNotHeld):
        stream_of(file, SFT, fetch, on_progress)
    assert len(ticks) == 3, "2,000 rows are 8 batches"
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]
    assert stream_of(file, SFT, fetch, nothing).rows == 2000


def test_rows_of_many_turns_are_batches_of_their_own(cache):
    turns = [{"role": ("user", "assistant")[at % 2], "content": "a"} for at in range(400)]
    ticks = []
    file, fetch = kept(cache, [{"messages": turns}] * 3)
    stream_of(file, SFT, fetch, lambda: ticks.append(1))
    assert len(ticks) == 3


def test_a_wrong_line_is_named_and_nothing_stays(cache):
    file, fetch = kept(cache, [*corpus.rows(400), {"txt": "?"}])
    with pytest.raises(DataError, match="line 401: objective sft learns from"):
        stream_of(file, SFT, fetch, nothing)
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]


def test_executors_that_want_the_same_stream_make_it_once(cache):
    file, fetch = kept(cache, corpus.rows(600))
    fetched, made, together = [], [], threading.Barrier(4)

    def want() -> None:
        together.wait()
        made.append(stream_of(file, SFT, lambda: fetched.append(1) or fetch(), nothing))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [1]
    assert len({stream.digest for stream in made}) == 1


def _die_half_way(folder: Path) -> None:
    file, fetch = kept(NodeCache(folder), corpus.rows(600))
    ticks = []
    stream_of(file, SFT, fetch, lambda: ticks.append(1) or len(ticks) < 2 or os.kill(os.getpid(), signal.SIGKILL))


def test_a_process_that_dies_half_way_is_in_nobody_s_way(cache):
    worker = multiprocessing.get_context("spawn").Process(target=_die_half_way, args=(cache.folder,))
    worker.start()
    worker.join()
    assert worker.exitcode == -9
    file, fetch = kept(cache, corpus.rows(600))
    assert any(path.name.startswith("new-") for path in file.streams.iterdir()), "it was killed while it wrote"
    same(stream_of(file, SFT, fetch, nothing), SFT, corpus.rows(600))
    for path in file.streams.glob("new-*"):
        os.utime(path, (0, 0))
    cache.sweep()
    assert sorted(path.name for path in file.streams.iterdir()) == [SFT.key, SFT.key + ".lock"]


def test_memory_does_not_grow_with_the_rows(cache):
    def peak(count: int) -> int:
        file, fetch = kept(cache, [{"text": f"row {n}"} for n in range(count)])
        fetch()
        tracemalloc.start()
        stream_of(file, SFT, fetch, nothing)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1000)
    small, large = peak(4000), peak(16000)
    assert large - small < 12000 * 80, f"{(large - small) / 12000:.0f} bytes a row: rows are held"


def test_what_was_not_used_for_the_longest_goes_first_and_what_is_open_stays(cache):
    files = []
    for seed in range(3):
        file, fetch = kept(cache, corpus.rows(50, seed), f"t{seed}")
        files.append((file, stream_of(file, SFT, fetch, nothing)))
    held = files.pop(0)  # the oldest, which is still open
    paths = [file.streams / SFT.key for file, _ in files]
    paths.insert(0, held[0].streams / SFT.key)
    del files, file
    whole = sum(entry.bytes for entry in cache._entries())
    assert cache.evict(whole) == 0
    assert cache.evict(0) < whole
    assert [path.exists() for path in paths] == [True, False, False]
    same(held[1], SFT, corpus.rows(50, 0))
    del held
    assert cache.evict(0) > 0
    assert list(cache._entries()) == []


def test_the_budget_is_met_after_each_stream(tmp_path):
    cache = NodeCache(tmp_path, budget=100_000)
    for seed in range(6):
        file, fetch = kept(cache, corpus.rows(200, seed))
        stream_of(file, SFT, fetch, nothing)
        assert sum(entry.bytes for entry in cache._entries()) <= 100_000
    assert (file.streams / SFT.key).exists(), "the last one has room"


@pytest.fixture
def listings(monkeypatch) -> list[int]:
    """Grows by the bytes found with each listing of all entries."""
    found, real = [], NodeCache._entries

    def entries(self):
        listed = list(real(self))
        found.append(sum(entry.bytes for entry in listed))
        return listed

    monkeypatch.setattr(NodeCache, "_entries", entries)
    return found


def test_entries_are_listed_where_the_budget_may_be_exceeded_and_not_with_each_stream(tmp_path, listings):
    cache = NodeCache(tmp_path, budget=1_000_000)

    def make(seed: int) -> None:
        file, fetch = kept(cache, corpus.rows(200, seed), f"t{seed}")
        stream_of(file, SFT, fetch, nothing)

    make(0)
    (first,) = listings
    held = 1_000_000 // first
    for seed in range(1, held - 1):
        make(seed)
    assert len(listings) == 1, "there was room for all of them"
    for seed in range(held, 2 * held):
        make(seed)
    assert 2 <= len(listings) <= 12, f"a tenth of the budget is free after each listing: {listings}"
    assert max(listings) <= 1_000_000 + 2 * first
    assert sum(entry.bytes for entry in cache._entries()) <= 1_000_000


def test_what_another_process_added_is_evicted_by_the_daemon_s_rounds(tmp_path):
    mine, other, daemon = (NodeCache(tmp_path, budget=100_000) for _ in range(3))
    for seed in range(6):
        for cache, tenant in ((mine, "t1"), (other, "t2")):
            file, fetch = kept(cache, corpus.rows(100, seed), tenant)
            stream_of(file, SFT, fetch, nothing)
    daemon.evict()
    held = sum(entry.bytes for entry in daemon._entries())
    assert 0 < held <= 100_000


def test_an_erased_file_takes_all_along_that_came_of_it(cache):
    file, fetch = kept(cache, MIXED)
    other, fetch_other = kept(cache, MIXED, "t2")
    stream = stream_of(file, SFT, fetch, nothing)
    stream_of(other, SFT, fetch_other, nothing)
    for owner in (file, other):
        owner.references.keep(lambda path: path.write_bytes(b"1"), name=f"{'a' * 64}-{'b' * 64}")
    assert sorted(cache.files()) == [("t1", file.sha256), ("t2", other.sha256)]
    cache.erase("t1", file.sha256)
    assert cache.files() == [("t2", other.sha256)]
    assert [path for path in cache.folder.glob("t1/**/*") if path.is_file()] == []
    same(stream, SFT, MIXED)  # an executor that reads it reads on
    cache.erase("t2", "b" * 64)
    assert list(other.references.folder.iterdir()) == [], "numbers computed with an erased validation file go too"
    assert stream_of(other, SFT, never, nothing).rows
