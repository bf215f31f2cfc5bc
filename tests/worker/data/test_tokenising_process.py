"""What takes long is tokenised in a process of its own: to the same bits, and to the same errors."""

import errno
import json
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
from worker.data import token_cache
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.row_reader import fingerprint_of, reader_of
from worker.data.token_cache import stream_of
from worker.data.tokenising import file_tokeniser, tokenising_process
from worker.data.tokenising.file_tokeniser import DataError, Reading, work_of
from worker.data.tokenising.tokenising_main import Outcome
from worker.data.tokenising.tokenising_process import tokenise_apart
from worker.executor.placement.placement_lease import LeaseNotHeld


@pytest.fixture
def cache(tmp_path) -> NodeCache:
    return NodeCache(tmp_path / "tenants")


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(token_cache, "_APART_WORK", 0)


def here(*_: object) -> None:
    raise AssertionError("it was to be read in a process of its own")


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_a_process_of_its_own_makes_the_same_stream(cache, all_are_large, monkeypatch, objective):
    rows = (
        MIXED if objective == "sft" else [{"prompt": f"say {n}", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]
    )
    reading = replace(APART, objective=Objective(type=objective))
    file, fetch = kept(cache, rows)
    made = stream_of(file, replace(reading, folder=None), fetch, nothing)
    file, fetch = kept(cache, rows, "t2")
    monkeypatch.setattr(token_cache, "tokenise", here)
    ticks = []
    apart = stream_of(file, reading, fetch, lambda: ticks.append(1))
    assert (apart.digest, apart.skipped, apart.truncated) == (made.digest, made.skipped, made.truncated)
    assert ticks
    same(apart, reading, rows)


def test_the_date_that_a_template_writes_is_that_of_the_task(cache, all_are_large, monkeypatch, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(EXAMPLE_BASE, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = tokenizer.chat_template + "{{ strftime_now('%d %m %Y') }}"
    tokenizer.save_pretrained(folder)
    created = datetime(2026, 1, 2, tzinfo=UTC)
    reading = Reading(reader_of(tokenizer).at(created), Objective(), 400, fingerprint_of(tokenizer), created, folder)
    rows = [{"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}] * 3
    file, fetch = kept(cache, rows)
    monkeypatch.setattr(token_cache, "tokenise", here)
    same(stream_of(file, reading, fetch, nothing), reading, rows)


def test_only_large_files_are_read_in_a_process_of_their_own(cache, monkeypatch):
    monkeypatch.setattr(token_cache, "tokenise_apart", here)
    file, fetch = kept(cache, MIXED)
    assert stream_of(file, APART, fetch, nothing).rows
    monkeypatch.setattr(token_cache, "_APART_WORK", len(jsonl(MIXED)))
    file, fetch = kept(cache, MIXED, "t2")
    with pytest.raises(AssertionError, match="process of its own"):
        stream_of(file, APART, fetch, nothing)


def conversation(messages: int, said: str = "a") -> dict[str, object]:
    return {"messages": [{"role": ("user", "assistant")[at % 2], "content": said} for at in range(messages)]}


@pytest.mark.parametrize("row", [conversation(1000), conversation(600, "a " * 500)])
def test_a_few_kilobytes_of_many_turns_are_read_in_a_process_of_their_own(cache, monkeypatch, row):
    monkeypatch.setattr(token_cache, "tokenise_apart", here)
    file, fetch = kept(cache, [row])
    with pytest.raises(AssertionError, match="process of its own"):
        stream_of(file, APART, fetch, nothing)


CODE = {"text": 'if (a) { b = "{"; }\n' * 4000}


@pytest.mark.parametrize("rows", [[conversation(10)] * 500, [CODE] * 4], ids=["chats", "code"])
def test_rows_of_few_turns_and_of_code_are_not_taken_for_long_ones(cache, monkeypatch, rows):
    monkeypatch.setattr(token_cache, "tokenise_apart", here)
    file, fetch = kept(cache, rows)
    assert stream_of(file, APART, fetch, nothing).rows == len(rows)


def test_the_turns_are_counted_however_their_json_is_written():
    row = conversation(1000)
    plain = json.dumps(row)
    escaped = plain.replace('"role"', '"\\u0072ole"').replace('{"', '{ \t"')
    assert json.loads(escaped) == row
    assert work_of(escaped.encode()) >= work_of(plain.encode()) >= 50 * len(plain)


def test_a_process_of_its_own_ends_with_the_lease(cache, all_are_large, monkeypatch):
    children = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: children.append(start(*args, **kwargs)) or children[-1])
    file, fetch = kept(cache, corpus.rows(2000))

    def on_progress() -> None:
        if children:
            raise LeaseNotHeld("over")

    with pytest.raises(LeaseNotHeld):
        stream_of(file, APART, fetch, on_progress)
    (child,) = children
    assert child.returncode == -signal.SIGKILL
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]


def test_a_wrong_line_is_named_by_a_process_of_its_own(cache, all_are_large):
    file, fetch = kept(cache, [*corpus.rows(400), {"txt": "?"}])
    with pytest.raises(DataError, match="line 401: objective sft learns from"):
        stream_of(file, APART, fetch, nothing)
    assert [path.name for path in file.streams.iterdir()] == [SFT.key + ".lock"]


def test_a_full_disk_is_told_by_a_process_of_its_own(cache, all_are_large, monkeypatch):
    full = Outcome(errno=errno.ENOSPC, said="no space")
    monkeypatch.setattr(tokenising_process, "_answer", lambda *_: full.model_dump_json())
    file, fetch = kept(cache, MIXED)
    with pytest.raises(DiskFull):
        stream_of(file, APART, fetch, nothing)


def test_a_file_that_is_erased_meanwhile_is_told_by_a_process_of_its_own(cache, all_are_large):
    file, fetch = kept(cache, MIXED)
    path = fetch()
    reading, into = APART, file.streams / "new"
    into.mkdir(parents=True)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tokenise_apart(path, reading, into, nothing)


@pytest.mark.parametrize("why", ["killed", "another tokenizer", "other code", "none can be started"])
def test_rows_are_read_here_where_a_process_of_their_own_cannot(cache, all_are_large, monkeypatch, caplog, why):
    reading = replace(APART, fingerprint="another") if why == "another tokenizer" else APART
    if why == "other code":
        monkeypatch.setattr(file_tokeniser, "_KEY_FORMAT", 1)
    if why == "none can be started":
        monkeypatch.setattr(tokenising_process, "_start", no_room)
    if why == "killed":
        started = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: killed(started(*args, **kwargs)))
    file, fetch = kept(cache, MIXED)
    same(stream_of(file, reading, fetch, nothing), SFT, MIXED)
    said = {"killed": "exit code -9", "none can be started": "[Errno 11] no more processes"}.get(why, "exit code 1")
    assert f"in a process of their own ({said})" in caplog.text


def no_room(order: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "no more processes")


def killed(child: subprocess.Popen) -> subprocess.Popen:
    child.kill()
    child.wait()
    return child
