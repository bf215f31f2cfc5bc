"""An executor's own files: nobody else removes them while it lives, whatever their age; a later process does so afterwards."""

import errno
import os
import subprocess
import sys
import time

import pytest

from worker.data import object_cache
from worker.data.executor_folders import EXECUTORS, ExecutorFolders, remove_dead
from worker.data.object_cache import ObjectCache

DAYS = 3 * 24 * 3600
_OWNER = """
import sys
from pathlib import Path
from worker.data.executor_folders import ExecutorFolders

folders = ExecutorFolders(Path(sys.argv[1]), None)
print(folders.own.keep(lambda path: path.write_bytes(b"parked"), "parked").path, flush=True)
sys.stdin.read()
"""


def aged(path):
    then = time.time() - DAYS
    os.utime(path, (then, then))


def test_files_of_a_living_executor_stay_and_those_of_a_killed_one_go(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        file = tmp_path / EXECUTORS / owner.stdout.readline().strip()
        aged(file)
        aged(file.parent)
        other = ExecutorFolders(tmp_path, None)
        other.sweep()
        assert file.read_bytes() == b"parked"
        owner.kill()
        owner.wait()
        other.sweep()
    assert not file.parent.exists()
    assert [path.name for path in sorted((tmp_path / EXECUTORS).iterdir())] == sorted(
        [other.own.folder.name, f"{other.own.folder.name}.lock"]
    ), "the one that lives has its own"


def test_an_executor_that_is_about_to_make_its_folder_is_left_alone(tmp_path):
    executors = tmp_path / EXECUTORS
    executors.mkdir()
    (executors / "new.lock").touch()
    remove_dead(executors)
    assert (executors / "new.lock").exists()
    remove_dead(tmp_path / "none")


def test_a_linked_file_outlives_the_other_and_takes_the_place_of_an_older_one(tmp_path):
    tenants, own = ObjectCache(tmp_path / "tenants"), ObjectCache(tmp_path / "own")
    for content in (b"first", b"second"):
        kept = tenants.keep(lambda path, content=content: path.write_bytes(content) and None)
        path = own.link(kept.path, "job")
        tenants.drop(kept.sha256)
        assert path.read_bytes() == content
    with pytest.raises(FileNotFoundError):
        own.link(kept.path, "job")


def test_a_file_of_another_disk_is_copied(tmp_path, monkeypatch):
    def apart(file, path):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(object_cache.os, "link", apart)
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert ObjectCache(tmp_path / "own").link(file, "job").read_bytes() == b"content"
