"""Files that are tokenised at once, by several threads of an executor."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.worker.data.token_streams import APART, MIXED, kept, nothing, same
from worker.data.node_cache import NodeCache
from worker.data.token_cache import stream_of
from worker.data.tokenising import row_tokeniser
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.data.tokenising.tokenising_process import TokenisingProcess
from worker.executor.placement.placement_lease import LeaseNotHeld

PATIENCE = 60.0


@pytest.fixture
def cache(tmp_path) -> NodeCache:
    return NodeCache(tmp_path / "tenants")


@pytest.fixture
def tokeniser():
    made = RowTokeniser()
    made._has_read = True
    yield made
    made.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made


def reads(cache: NodeCache, tokeniser: RowTokeniser, tenant: str, ticks=nothing) -> None:
    file, fetch = kept(cache, MIXED, tenant)
    same(stream_of(file, APART, fetch, ticks, tokeniser.tokenise), APART, MIXED)


def ready(tokeniser: RowTokeniser, processes: int) -> list[TokenisingProcess]:
    """So many that stay, with nothing to do."""
    tokeniser._idle += [TokenisingProcess(APART, yields=False) for _ in range(processes)]
    for process in tokeniser._idle:
        while not process.ready(PATIENCE):
            pass
    return list(tokeniser._idle)


@pytest.fixture
def counted(monkeypatch):
    """How many files processes read now, and at most; a read sets `begun`, and waits for `meeting`, if there is one."""
    counts, guard, real = {"now": 0, "most": 0, "meeting": None}, threading.Lock(), TokenisingProcess.tokenise
    counts["begun"] = threading.Event()

    def tokenise(self, *parts):
        with guard:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        counts["begun"].set()
        try:
            if counts["meeting"] is not None:
                counts["meeting"].wait(PATIENCE)
            real(self, *parts)
        finally:
            with guard:
                counts["now"] -= 1

    monkeypatch.setattr(TokenisingProcess, "tokenise", tokenise)
    return counts


def here(*_: object) -> None:
    raise AssertionError("it was to be read in a process that stays")


def test_each_is_read_by_a_process_of_those_that_stay(cache, tokeniser, pool, counted, monkeypatch):
    staying, counted["meeting"] = ready(tokeniser, 2), threading.Barrier(2)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    for done in [pool.submit(reads, cache, tokeniser, f"t{n}") for n in range(6)]:
        done.result(PATIENCE)
    assert counted["most"] == 2
    assert set(tokeniser._idle) == set(staying)


def test_who_waits_for_one_has_another_started_up_to_a_limit(cache, tokeniser, pool, counted, monkeypatch):
    monkeypatch.setattr(row_tokeniser, "_STAYING", 2)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    ready(tokeniser, 1)
    counted["meeting"] = threading.Barrier(2)  # the first is read until the second is, by another process
    for done in [pool.submit(reads, cache, tokeniser, f"t{n}") for n in range(4)]:
        done.result(PATIENCE)
    assert counted["most"] == 2
    assert len(tokeniser._idle) == 2


def test_who_came_first_is_read_first(cache, tokeniser, pool, counted, monkeypatch):
    monkeypatch.setattr(row_tokeniser, "_STAYING", 1)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    ready(tokeniser, 1)
    order, real = [], row_tokeniser.TokenisingProcess.tokenise

    def tokenise(self, path, *parts):
        order.append(path.parts[-4])
        real(self, path, *parts)

    monkeypatch.setattr(TokenisingProcess, "tokenise", tokenise)
    counted["meeting"] = threading.Barrier(2)  # the first is read until all others wait
    waiting = [pool.submit(reads, cache, tokeniser, "t0")]
    assert counted["begun"].wait(PATIENCE)
    for n in range(1, 6):
        came = threading.Event()
        waiting.append(pool.submit(reads, cache, tokeniser, f"t{n}", came.set))
        while len(tokeniser._waiting) < n:
            assert came.wait(PATIENCE)
            came.clear()
    meeting, counted["meeting"] = counted["meeting"], None
    meeting.wait(PATIENCE)
    for done in waiting:
        done.result(PATIENCE)
    assert order == [f"t{n}" for n in range(6)]


def test_a_lease_that_ends_ends_the_wait_for_one(cache, tokeniser, pool, counted, monkeypatch):
    monkeypatch.setattr(row_tokeniser, "_STAYING", 1)
    ready(tokeniser, 1)
    counted["meeting"] = threading.Barrier(2)
    first = pool.submit(reads, cache, tokeniser, "t1")
    assert counted["begun"].wait(PATIENCE)

    def over() -> None:
        raise LeaseNotHeld("over")

    with pytest.raises(LeaseNotHeld):
        reads(cache, tokeniser, "t2", over)
    counted["meeting"].wait(PATIENCE)
    first.result(PATIENCE)


def test_long_files_are_read_by_so_many_and_hold_up_no_short_one(cache, tokeniser, pool, monkeypatch):
    staying, begun, ends, real = ready(tokeniser, 1), threading.Semaphore(0), threading.Event(), TokenisingProcess.tokenise

    def tokenise(self, *parts):
        if self not in staying:
            begun.release()
            assert ends.wait(PATIENCE)
        real(self, *parts)

    def over() -> None:
        raise LeaseNotHeld("over")

    monkeypatch.setattr(TokenisingProcess, "tokenise", tokenise)
    tokeniser._apart = threading.Semaphore(2)
    with monkeypatch.context() as patched:
        patched.setattr(row_tokeniser, "_APART_WORK", 0)
        long = [pool.submit(reads, cache, tokeniser, f"long{n}") for n in range(2)]
        for _ in long:
            assert begun.acquire(timeout=PATIENCE)
        with pytest.raises(LeaseNotHeld):
            reads(cache, tokeniser, "third", over)  # while it waits
        assert not begun.acquire(blocking=False)
    reads(cache, tokeniser, "short")
    ends.set()
    for one in long:
        one.result(PATIENCE)


def test_those_that_are_read_here_are_read_one_after_another(cache, tokeniser, pool, monkeypatch):
    inside, most, real = [0], [0], row_tokeniser.tokenise

    def tokenise(*parts):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        real(*parts)
        inside[0] -= 1

    monkeypatch.setattr(row_tokeniser, "tokenise", tokenise)
    monkeypatch.setattr(RowTokeniser, "_tokenised_apart", lambda *parts: False)
    for done in [pool.submit(reads, cache, tokeniser, f"t{n}") for n in range(4)]:
        done.result(PATIENCE)
    assert most == [1]


def test_one_that_is_at_work_ends_once_it_is_done(cache, tokeniser, pool, counted):
    (process,) = ready(tokeniser, 1)
    counted["meeting"] = threading.Barrier(2)
    reading = pool.submit(reads, cache, tokeniser, "t1")
    assert counted["begun"].wait(PATIENCE)
    tokeniser.close()
    assert process.lives
    counted["meeting"].wait(PATIENCE)
    reading.result(PATIENCE)
    assert not process.lives
