"""A node's cache of bases: its budget, its disk, what it says."""

import hashlib
import time
from pathlib import Path

import pytest

from contract.messages.placement_messages import BaseFile
from worker.data.base_cache import BaseCache, BaseTooLarge, fetch_rate, held_bases, key_of
from worker.data.disk_full import DiskFull


def made(name: str, size: int) -> tuple[BaseFile, ...]:
    content = name.encode() * (size // len(name))
    return (BaseFile(path="model.safetensors", sha256=hashlib.sha256(content).hexdigest(), bytes=len(content)),)


def write(file: BaseFile, path: Path) -> None:
    path.write_bytes(bytes(file.bytes))


def never(file: BaseFile, path: Path) -> None:
    raise AssertionError("it is here already")


def nobody(there: int) -> None:
    raise AssertionError("nobody else fetches")


def test_the_least_recently_used_go_and_one_in_use_stays(tmp_path):
    cache = BaseCache(tmp_path, budget=3000)
    first, second, third = made("a", 1000), made("b", 1000), made("c", 1000)
    in_use = cache.hold(first, write, nobody)
    for files in (second, third):
        cache.hold(files, write, nobody).release()
        time.sleep(0.01)  # dates of files tell them apart
    cache.hold(second, never, nobody).release()
    cache.hold(made("d", 1000), write, nobody).release()
    left = {files[0].sha256 for files in (first, second, third) if (tmp_path / key_of(files)).exists()}
    assert left == {first[0].sha256, second[0].sha256}
    with pytest.raises(BaseTooLarge, match="MOTET_WORKER_BASE_BYTES"):
        cache.hold(made("e", 4000), write, nobody)
    assert cache.evict(0) == 2000
    assert in_use.folder.is_dir()
    in_use.release()
    assert cache.evict(0) == 1000
    assert not in_use.folder.exists()


def test_a_base_has_its_templates_in_their_folder(tmp_path):
    cache = BaseCache(tmp_path, budget=3000)
    files = (*made("a", 1000), BaseFile(path="additional_chat_templates/tool_use.jinja", sha256="f" * 64, bytes=1000))
    held = cache.hold(files, write, nobody)
    assert all((held.folder / file.path).stat().st_size == 1000 for file in files)
    held.release()
    assert cache.evict(0) == 2000


def test_a_cache_says_what_it_holds_and_how_fast_it_came(tmp_path):
    folder = tmp_path / "bases"
    assert (held_bases(folder), fetch_rate(folder)) == ([], None)
    cache = BaseCache(folder, budget=2**30)
    small, large = made("a", 1000), (BaseFile(path="model.safetensors", sha256="f" * 64, bytes=20 * 2**20),)
    cache.hold(small, write, nobody).release()
    assert (held_bases(folder), fetch_rate(folder)) == ([key_of(small)], None), "a small one tells no rate"

    def breaks(file: BaseFile, path: Path) -> None:
        write(file, path)
        raise OSError("cut")

    with pytest.raises(OSError, match="cut"):
        cache.hold(large, breaks, nobody)
    assert (held_bases(folder), fetch_rate(folder)) == ([key_of(small)], None), "one that is not whole is not held"
    (folder / f"{key_of(large)}.partial" / "model.safetensors").unlink()
    cache.hold(large, write, nobody).release()
    assert held_bases(folder) == sorted([key_of(small), key_of(large)])
    first = fetch_rate(folder)
    assert first is not None
    assert first > 0
    cache.evict(0)
    assert held_bases(folder) == []
    assert fetch_rate(folder) == first


def test_a_full_disk_is_told_and_unused_bases_make_room_first(small_disk):
    size = 2**20
    cache = BaseCache(small_disk.folder / "bases", budget=2**40)
    old = cache.hold(made("old ", size), write, nobody)
    old.release()
    small_disk.fill()
    room = cache.hold(made("new ", size), write, nobody)
    assert not old.folder.exists()
    with pytest.raises(DiskFull, match=r"make room there, and the work goes on by itself"):
        cache.hold(made("more", 2 * size), write, nobody)
    assert room.folder.is_dir()


def test_a_disk_that_is_full_once_all_is_fetched_is_waited_for(small_disk, monkeypatch):
    monkeypatch.setattr("worker.data.base_cache._LEAST", 0)  # so that its rate is noted
    cache, files = BaseCache(small_disk.folder / "bases", budget=2**30), made("a", 1000)

    def fills(file: BaseFile, path: Path) -> None:
        write(file, path)
        small_disk.fill()

    with pytest.raises(DiskFull):
        cache.hold(files, fills, nobody)
    small_disk.free()
    cache.hold(files, write, nobody).release()
    assert held_bases(small_disk.folder / "bases") == [key_of(files)]
