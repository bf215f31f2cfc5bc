"""A backup of a Postgres that hangs ends in words: at once where it takes no connection, and when the dump grows no further."""

import shutil

import psycopg
import pytest

from deploy import backup
from deploy.devstack.stack_errors import StackError
from deploy.devstack.state_folder import State


def test_a_postgres_that_takes_no_connection_is_no_wait_for_ever(stack, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "_CONNECT_SECONDS", 2)  # the least that libpq takes
    dump = tmp_path / "database.dump"
    with stack.hung_postgres(), pytest.raises(StackError, match=r"pg_dump failed: .*timeout expired"):
        backup._tool(stack.postgres, "pg_dump", "--format=custom", f"--file={dump}", grows=dump)


def test_a_dump_that_grows_no_further_is_given_up(stack, tmp_path, monkeypatch):
    """A table is locked by somebody: the dump waits for it, as it would for a server that stopped."""
    monkeypatch.setattr(backup, "_STALL_SECONDS", 1.0)
    dump = tmp_path / "database.dump"
    with psycopg.connect(stack.database_url.replace("+psycopg", "")) as held:
        held.execute("CREATE TABLE held (x int)")
        held.commit()
        held.execute("LOCK TABLE held")
        with pytest.raises(StackError, match="got nothing from Postgres for 1 s"):
            backup._tool(stack.postgres, "pg_dump", "--format=custom", f"--file={dump}", grows=dump)
        held.rollback()
        held.execute("DROP TABLE held")


def test_a_dump_says_what_is_wrong(stack, tmp_path):
    with pytest.raises(StackError, match="pg_dump failed"):
        backup._tool(stack.postgres, "pg_dump", f"--file={tmp_path / 'no' / 'folder'}")


def test_a_backup_of_another_stack_is_not_replaced(tmp_path):
    mine, other, target = State(tmp_path / "mine"), State(tmp_path / "other"), tmp_path / "backup"
    target.mkdir()
    mine.announce({})
    other.secrets()
    kept = shutil.copy2(other.folder / "secrets.json", target / "secrets.json")
    with pytest.raises(StackError, match="holds a backup of another stack"):
        backup.back_up(mine, target)
    assert kept.read_bytes() == (other.folder / "secrets.json").read_bytes()
    mine.take_secrets(kept)  # as one that was restored from it
    backup._check_own(mine, target)


def test_an_object_that_the_collector_removes_meanwhile_is_passed_over(tmp_path):
    state, objects = State(tmp_path / "state"), tmp_path / "state" / "storage" / "objects" / "ab"
    objects.mkdir(parents=True)
    (objects / "ab1").symlink_to(tmp_path / "removed")  # listed, and gone as it is opened
    (objects / "ab2").write_bytes(b"kept")
    backup._copy_objects(state, tmp_path / "backup")
    copies = tmp_path / "backup" / "storage" / "objects" / "ab"
    assert [(path.name, path.read_bytes()) for path in copies.iterdir()] == [("ab2", b"kept")]
