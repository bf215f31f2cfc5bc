"""Bases by their name on the hub, on an executor: fetched once, resumed, waited for, refused in words."""

import hashlib
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from contract.messages.placement_messages import BaseFile, BaseModelRef
from contract.messages.report_messages import PlacementFailed
from tests.hub.hub_process import COMMIT, ROOT, TOKEN, HubProcess, hub_process
from tests.worker.inside import Inside
from worker.data.base_cache import key_of
from worker.data.base_download import BaseDownloads, SourceAway
from worker.data.hub_source import HubSource
from worker.model.backbone import Backbone
from worker.pipe_messages import ExecutorProgress

SPACE = {"learning_rate": [1e-2], "rank": [4], "batch_size": [4]}


SHORT = {"max_steps": 3}


@pytest.fixture
def hub(tmp_path) -> Iterator[HubProcess]:
    with hub_process(tmp_path / "hub") as found:
        yield found


@pytest.fixture
def named(hub, tiny_base) -> BaseModelRef:
    """The tiny base as a repository of the hub, as the service hands it over."""
    source = Path(tiny_base.source)
    hub.add("org/tiny", {path.name: path.read_bytes() for path in source.iterdir()})
    return tiny_base.model_copy(update={"source": "hf://org/tiny", "commit": COMMIT, "files": files_in(source)})


def files_in(folder: Path) -> tuple[BaseFile, ...]:
    return tuple(
        BaseFile(path=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.name != "hub.json"
    )


def weights_asked(hub: HubProcess) -> list[str]:
    """The range of each request for the bytes of the weights."""
    return [line[1] for line in hub.requests if line[0].startswith("/cdn/") and line[0].endswith("model.safetensors")]


def sentences(inside: Inside) -> list[str]:
    return [how for news in inside.news if isinstance(news, ExecutorProgress) for how in news.loading.values()]


def error_of(reported) -> str:
    (failed,) = reported.of(PlacementFailed)
    return str(failed.error)


def test_a_base_that_the_node_never_saw_trains_as_one_in_a_folder_and_is_fetched_once(fleet, placing, tmp_path, hub, named):
    (in_folder,) = Inside(fleet, tmp_path / "a").run(placing(SPACE, training=SHORT))
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url)
    (fetched,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": named}))
    assert fetched.curves == in_folder.curves
    assert any("base model tiny: " in said and "fetched from the hub" in said for said in sentences(inside))
    assert weights_asked(hub) == ["bytes=0-"]
    hub.faults(down=True)
    (again,) = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url).run(
        placing(SPACE, training=SHORT).model_copy(update={"base": named})
    )
    assert again.curves == in_folder.curves


def test_another_commit_with_the_same_files_shares_the_loaded_base(fleet, placing, tmp_path, hub, named, monkeypatch):
    loads = list[object]()
    monkeypatch.setattr(Backbone, "load", lambda *args, load=Backbone.load: loads.append(args) or load(*args))
    inside = Inside(fleet, tmp_path, hf_endpoint=hub.url)
    later = named.model_copy(update={"commit": "9" * 40})
    first, joiner = (placing(SPACE, training={"max_steps": 12}).model_copy(update={"base": base}) for base in (named, later))
    for reported in inside.run(first, joining=[joiner]):
        assert not reported.of(PlacementFailed)
        assert reported.ended
    assert [ended.detail for ended in inside.ended] == ["done", "done"]
    assert len(loads) == 1
    assert weights_asked(hub) == ["bytes=0-"]


def test_a_connection_that_is_cut_is_resumed_where_it_ended(fleet, placing, tmp_path, hub, named):
    size = next(file.bytes for file in named.files if file.path == "model.safetensors")
    cut = size * 2 // 5
    hub.faults(cut_after=cut, block=1024)
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url)
    (reported,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": named}))
    assert not reported.of(PlacementFailed)
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) for asked in weights_asked(hub)]
    assert starts == [0, cut, 2 * cut]
    assert any("the hub does not answer, it is asked again" in said for said in sentences(inside))


def test_a_hub_that_is_away_is_named_without_the_password_in_its_url(hub, named):
    hub.faults(down=True)
    endpoint = hub.url.replace("//", "//user:sEcReT@")
    with HubSource(endpoint, None, "hf://org/tiny", COMMIT) as source, pytest.raises(SourceAway, match="503") as told:
        next(source.blocks(named.files[0], 0))
    assert "sEcReT" not in str(told.value)


def test_a_hub_that_sends_no_ranges_is_read_anew_without_harm(tmp_path, hub, named):
    file = next(file for file in named.files if file.path == "model.safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes((hub.folder / "org/tiny/model.safetensors").read_bytes()[:1000])
    hub.faults(no_ranges=True)
    with HubSource(hub.url, None, "hf://org/tiny", COMMIT) as source:
        BaseDownloads(source).fetch(file, path, lambda size: None)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def test_a_hub_that_is_down_is_waited_for(fleet, placing, tmp_path, hub, named):
    hub.faults(down=True)
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url)

    def heal(news: object) -> None:
        if isinstance(news, ExecutorProgress) and any("asked again" in how for how in news.loading.values()):
            hub.faults()

    inside.on_news = heal
    (reported,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": named}))
    assert not reported.of(PlacementFailed)
    assert any("asked again" in how for how in sentences(inside))
    assert [news.loading for news in inside.news if isinstance(news, ExecutorProgress)][-1] == {}


@pytest.mark.parametrize(
    ("faults", "repository", "says"),
    [
        ({"wrong": ["model.safetensors"]}, {}, "model.safetensors of org/tiny came with other bytes than the service pinned"),
        ({}, {"gated": "manual"}, "set HF_TOKEN of the worker"),
        ({}, {"commits": {"main": "9" * 40}}, "has no org/tiny at the pinned commit any more"),
    ],
)
def test_what_a_retry_would_not_mend_fails_the_task_in_words(fleet, placing, tmp_path, hub, named, faults, repository, says):
    hub.faults(**faults)
    held = hub.folder / "org/tiny/hub.json"
    held.write_text(json.dumps(json.loads(held.read_text()) | repository))
    (reported,) = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url).run(placing(SPACE).model_copy(update={"base": named}))
    assert says in error_of(reported)
    assert "base model tiny" in error_of(reported)


def test_the_nodes_token_opens_a_gate_and_goes_to_the_hub_alone(fleet, placing, tmp_path, hub, named, caplog):
    held = hub.folder / "org/tiny/hub.json"
    held.write_text(json.dumps(json.loads(held.read_text()) | {"gated": "manual"}))
    hub.faults(cdn=hub.other_origin)
    caplog.set_level(logging.DEBUG)
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url, hf_token=SecretStr(TOKEN))
    (reported,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": named}))
    assert not reported.of(PlacementFailed)
    assert TOKEN not in caplog.text
    sent = {(line[0].startswith("/cdn/"), line[2]) for line in hub.requests}
    assert sent == {(False, "token"), (True, "anonymous")}, "a bucket behind the hub gets no token"
    assert {line[0].split("/")[1] for line in hub.requests} == {"org", "cdn"}, "nothing but the files is asked for"


def test_a_disk_without_room_is_waited_for_and_told_with_the_size(fleet, placing, small_disk, hub, named):
    small_disk.fill()
    inside = Inside(fleet, small_disk.folder, hf_endpoint=hub.url, worker_base_bytes=2**40)
    freed = threading.Event()

    def free(news: object) -> None:
        if (
            not freed.is_set()
            and isinstance(news, ExecutorProgress)
            and any(waits_for_room(why) for why in news.waits.values())
        ):
            freed.set()
            small_disk.free()

    inside.on_news = free
    (reported,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": named}))
    assert freed.is_set()
    assert not reported.of(PlacementFailed)


def waits_for_room(why: str) -> bool:
    return re.search(r"the download of base model tiny \(\d+\.\d MB\) waits for room in MOTET_WORKER_DIR", why) is not None


def test_a_base_beyond_the_nodes_budget_is_refused_in_words(fleet, placing, tmp_path, hub, named):
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=hub.url, worker_base_bytes=1000)
    (reported,) = inside.run(placing(SPACE).model_copy(update={"base": named}))
    assert "raise MOTET_WORKER_BASE_BYTES" in error_of(reported)
    assert not hub.requests


FETCH = """
import json, sys
from pathlib import Path
from contract.messages.placement_messages import BaseFile
from worker.data.base_cache import BaseCache
from worker.data.base_download import BaseDownloads
from worker.data.hub_source import HubSource
files = [BaseFile(**one) for one in json.loads(sys.argv[3])]
with HubSource(sys.argv[2], None, "hf://org/tiny", sys.argv[4]) as hub:
    downloads = BaseDownloads(hub)
    fetch = lambda file, path: downloads.fetch(file, path, lambda size: None)
    held = BaseCache(Path(sys.argv[1])).hold(files, fetch, lambda there: print(there, flush=True))
print("done", flush=True)
"""


def fetching(hub: HubProcess, folder: Path, files: tuple[BaseFile, ...]) -> subprocess.Popen[str]:
    said = json.dumps([file.model_dump() for file in files])
    command = [sys.executable, "-c", FETCH, str(folder), hub.url, said, COMMIT]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_fetch_that_is_killed_goes_on_where_it_was_and_one_process_fetches_for_all(tmp_path, hub, named):
    cache, file = tmp_path / "cache", next(file for file in named.files if file.path == "model.safetensors")
    hub.faults(seconds=0.1, block=file.bytes // 200)
    process = fetching(hub, cache, named.files)
    partial = cache / (key_of(named.files) + ".partial") / file.path
    deadline = time.monotonic() + 120
    while not (partial.exists() and partial.stat().st_size > file.bytes // 20):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    hub.faults()
    there = partial.stat().st_size
    assert file.bytes // 20 < there < file.bytes
    both = [fetching(hub, cache, named.files) for _ in range(2)]
    assert ["done" in (each.communicate(timeout=120)[0] or "") for each in both] == [True, True]
    assert weights_asked(hub) == ["bytes=0-", f"bytes={there}-"]
    whole = cache / key_of(named.files)
    assert {path.name for path in whole.iterdir()} == {one.path for one in named.files}
    assert hashlib.sha256((whole / file.path).read_bytes()).hexdigest() == file.sha256
