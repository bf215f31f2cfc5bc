"""What is tokenised in a process beside the executor's: to the same bits, and to the same errors."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from transformers import AutoTokenizer

from contract.task_spec import Objective
from tests.worker import corpus
from tests.worker.corpus import EXAMPLE_BASE, jsonl
from tests.worker.data.token_streams import APART, MIXED, SFT, kept, nothing, same
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.row_reader import fingerprint_of, reader_of
from worker.data.token_cache import stream_of
from worker.data.tokenising import file_tokeniser, row_tokeniser
from worker.data.tokenising.file_tokeniser import DataError, Reading, work_of
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.data.tokenising.tokenising_main import Outcome
from worker.data.tokenising.tokenising_process import TokenisingProcess
from worker.executor.placement.placement_lease import LeaseNotHeld


@pytest.fixture
def cache(tmp_path) -> NodeCache:
    return NodeCache(tmp_path / "tenants")


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(row_tokeniser, "_APART_WORK", 0)


@pytest.fixture
def tokeniser():
    made = RowTokeniser()
    yield made
    made.close()


def here(*_: object) -> None:
    raise AssertionError("it was to be read in a process of its own")


def apart(*_: object, **__: object) -> None:
    raise AssertionError("it was to be read here")


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_a_process_of_its_own_makes_the_same_stream(cache, all_are_large, monkeypatch, objective, tokeniser):
    rows = (
        MIXED if objective == "sft" else [{"prompt": f"say {n}", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]
    )
    reading = replace(APART, objective=Objective(type=objective))
    file, fetch = kept(cache, rows)
    made = stream_of(file, replace(reading, folder=None), fetch, nothing)
    file, fetch = kept(cache, rows, "t2")
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    ticks = []
    found = stream_of(file, reading, fetch, lambda: ticks.append(1), tokeniser.tokenise)
    assert (found.digest, found.skipped, found.truncated) == (made.digest, made.skipped, made.truncated)
    assert ticks
    same(found, reading, rows)


def test_the_date_that_a_template_writes_is_that_of_the_task(cache, all_are_large, monkeypatch, tmp_path, tokeniser):
    folder = tmp_path / "base"
    shutil.copytree(EXAMPLE_BASE, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = tokenizer.chat_template + "{{ strftime_now('%d %m %Y') }}"
    tokenizer.save_pretrained(folder)
    created = datetime(2026, 1, 2, tzinfo=UTC)
    reading = Reading(reader_of(tokenizer).at(created), Objective(), 400, fingerprint_of(tokenizer), created, folder)
    rows = [{"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}] * 3
    file, fetch = kept(cache, rows)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    same(stream_of(file, reading, fetch, nothing, tokeniser.tokenise), reading, rows)


def test_only_large_files_are_read_in_a_process_of_their_own(cache, monkeypatch, tokeniser):
    monkeypatch.setattr(row_tokeniser, "TokenisingProcess", apart)
    file, fetch = kept(cache, MIXED)
    assert stream_of(file, APART, fetch, nothing, tokeniser.tokenise).rows
    monkeypatch.setattr(row_tokeniser, "_APART_WORK", len(jsonl(MIXED)))
    file, fetch = kept(cache, MIXED, "t2")
    with pytest.raises(AssertionError, match="it was to be read here"):
        stream_of(file, APART, fetch, nothing, tokeniser.tokenise)


def conversation(messages: int, said: str = "a") -> dict[str, object]:
    return {"messages": [{"role": ("user", "assistant")[at % 2], "content": said} for at in range(messages)]}


@pytest.mark.parametrize("row", [conversation(1000), conversation(600, "a " * 500)])
def test_a_few_kilobytes_of_many_turns_are_read_in_a_process_of_their_own(cache, monkeypatch, row, tokeniser):
    monkeypatch.setattr(row_tokeniser, "TokenisingProcess", apart)
    file, fetch = kept(cache, [row])
    with pytest.raises(AssertionError, match="it was to be read here"):
        stream_of(file, APART, fetch, nothing, tokeniser.tokenise)


CODE = {"text": 'if (a) { b = "{"; }\n' * 4000}


@pytest.mark.parametrize("rows", [[conversation(10)] * 500, [CODE] * 4], ids=["chats", "code"])
def test_rows_of_few_turns_and_of_code_are_not_taken_for_long_ones(cache, monkeypatch, rows, tokeniser):
    monkeypatch.setattr(row_tokeniser, "TokenisingProcess", apart)
    file, fetch = kept(cache, rows)
    assert stream_of(file, APART, fetch, nothing, tokeniser.tokenise).rows == len(rows)


def test_the_turns_are_counted_however_their_json_is_written():
    row = conversation(1000)
    plain = json.dumps(row)
    escaped = plain.replace('"role"', '"\\u0072ole"').replace('{"', '{ \t"')
    assert json.loads(escaped) == row
    assert work_of(escaped.encode()) >= work_of(plain.encode()) >= 50 * len(plain)


def test_a_process_of_its_own_ends_with_the_lease(cache, all_are_large, monkeypatch, tokeniser):
    children = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: children.append(start(*args, **kwargs)) or children[-1])
    file, fetch = kept(cache, corpus.rows(2000))

    def on_progress() -> None:
        if children:
            raise LeaseNotHeld("over")

    with pytest.raises(LeaseNotHeld):
        stream_of(file, APART, fetch, on_progress, tokeniser.tokenise)
    (child,) = children
    assert child.returncode == -signal.SIGKILL
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]


@pytest.fixture
def many_open_files():
    """So many that the next ones have numbers that select(2) does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_an_executor_with_many_open_files_reads_in_a_process_of_its_own(cache, all_are_large, monkeypatch, tokeniser):
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    reads(cache, tokeniser, "t1")


def test_a_wrong_line_is_named_by_a_process_of_its_own(cache, all_are_large, tokeniser):
    file, fetch = kept(cache, [*corpus.rows(400), {"txt": "?"}])
    with pytest.raises(DataError, match="line 401: objective sft learns from"):
        stream_of(file, APART, fetch, nothing, tokeniser.tokenise)
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]


def test_a_full_disk_is_told_by_a_process_of_its_own(cache, all_are_large, monkeypatch, tokeniser):
    full = Outcome(errno=errno.ENOSPC, said="no space")
    monkeypatch.setattr(TokenisingProcess, "_answer", lambda self: setattr(self, "_answers", True) or full)
    file, fetch = kept(cache, MIXED)
    with pytest.raises(DiskFull):
        stream_of(file, APART, fetch, nothing, tokeniser.tokenise)


def test_a_file_that_is_erased_meanwhile_is_told_by_a_process_of_its_own(cache, all_are_large, tokeniser):
    file, fetch = kept(cache, MIXED)
    path = fetch()
    reading, into = APART, file.streams / "new"
    into.mkdir(parents=True)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tokeniser.tokenise(path, reading, into, nothing)


@pytest.mark.parametrize("why", ["killed", "another tokenizer", "other code", "none can be started"])
def test_rows_are_read_here_where_a_process_of_their_own_cannot(cache, all_are_large, monkeypatch, caplog, why, tokeniser):
    reading = replace(APART, fingerprint="another") if why == "another tokenizer" else APART
    if why == "other code":
        monkeypatch.setattr(file_tokeniser, "_KEY_FORMAT", 1)
    if why == "none can be started":
        monkeypatch.setattr(subprocess, "Popen", no_room)
    if why == "killed":
        started = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: killed(started(*args, **kwargs)))
    file, fetch = kept(cache, MIXED)
    same(stream_of(file, reading, fetch, nothing, tokeniser.tokenise), SFT, MIXED)
    said = {"killed": "exit code -9", "none can be started": "[Errno 11] no more processes"}.get(why, "exit code 1")
    assert f"in a process of their own ({said})" in caplog.text


def no_room(*_: object, **__: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "no more processes")


def killed(child: subprocess.Popen) -> subprocess.Popen:
    child.kill()
    child.wait()
    return child


def reads(cache: NodeCache, tokeniser: RowTokeniser, tenant: str, reading: Reading = APART, ticks=nothing) -> None:
    """The same rows as another tenant's file."""
    file, fetch = kept(cache, MIXED, tenant)
    same(stream_of(file, reading, fetch, ticks, tokeniser.tokenise), reading, MIXED)


def standby(cache: NodeCache, tokeniser: RowTokeniser) -> TokenisingProcess:
    """The process that two files leave, ready."""
    reads(cache, tokeniser, "first")
    assert not tokeniser._idle
    reads(cache, tokeniser, "second")
    (process,) = tokeniser._idle
    while not process.ready(60):
        pass
    return process


def test_files_behind_the_second_are_read_in_a_process_that_stays(cache, monkeypatch, tokeniser):
    process = standby(cache, tokeniser)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    for tenant in ("t1", "t2"):
        reads(cache, tokeniser, tenant)
    reads(cache, tokeniser, "t3", replace(APART, max_seq_len=20))
    assert tokeniser._idle == [process]
    tokeniser.close()
    assert process._child.returncode == -signal.SIGKILL


def test_it_stays_where_rows_are_wrong(cache, monkeypatch, tokeniser):
    process = standby(cache, tokeniser)
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    file, fetch = kept(cache, [*MIXED, {"txt": "?"}])
    with pytest.raises(DataError, match=f"line {len(MIXED) + 1}: objective sft learns from"):
        stream_of(file, APART, fetch, nothing, tokeniser.tokenise)
    reads(cache, tokeniser, "t1")
    assert tokeniser._idle == [process]


def test_it_reads_by_the_tokenizer_of_each_file(cache, monkeypatch, tokeniser, tmp_path):
    standby(cache, tokeniser)
    shutil.copytree(EXAMPLE_BASE, tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    tokenizer.add_tokens(["once"])
    tokenizer.save_pretrained(tmp_path / "base")
    other = replace(APART, reader=reader_of(tokenizer), fingerprint=fingerprint_of(tokenizer), folder=tmp_path / "base")
    monkeypatch.setattr(row_tokeniser, "tokenise", here)
    reads(cache, tokeniser, "t1", other)
    reads(cache, tokeniser, "t2")


def test_a_lost_lease_ends_it_and_the_next_file_has_another(cache, tokeniser):
    process = standby(cache, tokeniser)
    asked = []

    def on_progress() -> None:
        asked.append(1)
        raise LeaseNotHeld("over")

    file, fetch = kept(cache, MIXED, "t1")
    with pytest.raises(LeaseNotHeld):
        stream_of(file, APART, fetch, on_progress, tokeniser.tokenise)
    assert asked
    assert not process.lives
    reads(cache, tokeniser, "t2")
    assert tokeniser._idle[0].lives


@pytest.mark.parametrize("asked", [False, True], ids=["while it waits", "while it reads"])
def test_where_it_is_killed_rows_are_read_here(cache, tokeniser, caplog, asked):
    process = standby(cache, tokeniser)
    if not asked:
        process._child.kill()
    reads(cache, tokeniser, "t1", ticks=process._child.kill if asked else nothing)
    assert not process.lives
    assert "in a process of their own (exit code -9)" in caplog.text


def test_where_it_hangs_rows_are_read_here(cache, tokeniser, caplog, monkeypatch):
    process = standby(cache, tokeniser)
    monkeypatch.setattr(row_tokeniser, "_MOST_SECONDS", 0.5)
    process._child.send_signal(signal.SIGSTOP)
    reads(cache, tokeniser, "t1")
    assert not process.lives
    assert "in a process of their own (no answer in 0.5 s)" in caplog.text
