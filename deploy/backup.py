"""`python -m deploy.backup FOLDER`: copies a running stack's data to a folder from which another stack can start. Stops
nothing.

FOLDER gets database.dump, secrets.json and storage/; a second run updates it. Storage is copied before the database is dumped,
since the collector removes old objects with the last row that refers to them, and once more for what came meanwhile: so every
dumped row finds its object. `python -m deploy.backup --restore FOLDER` creates the state folder from it, if there is none yet.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import create_engine, text

from contract.processes.local_stack import state_folder
from deploy.devstack.binaries import installed
from deploy.devstack.postgres import Postgres
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.private_folders import private_folder
from deploy.devstack.stack import postgres_of
from deploy.devstack.stack_errors import StackError, died
from deploy.devstack.state_folder import SECRETS, State
from service.database.engine import CONNECT
from service.schema import roles

_DUMP = "database.dump"
_READY_SECONDS = 120.0
_CONNECT_SECONDS, _LOCK_SECONDS = 5, 60
_STALL_SECONDS = 300.0  # a dump that grows no further for this long has lost its server


def back_up(state: State, target: Path) -> None:
    """Back up this folder's stack, which must be running."""
    if state.running is None:
        raise StackError("nothing runs there", "start it with `motet up`, or copy the whole folder of a stack that is stopped")
    private_folder(target)
    _check_own(state, target)
    _copy_objects(state, target)
    draft = target / f"{_DUMP}.new"
    postgres, words = postgres_of(state, choose_account()), ("--format=custom", f"--lock-wait-timeout={_LOCK_SECONDS}s")
    _tool(postgres, "pg_dump", *words, f"--file={draft}", grows=draft)
    _copy_objects(state, target)
    draft.replace(target / _DUMP)
    shutil.copy2(state.folder / SECRETS, target / SECRETS)


def _copy_objects(state: State, target: Path) -> None:
    """Copy the objects that the backup lacks. What the collector removes meanwhile is passed over."""
    if in_bucket() is not None:
        return
    for path in sorted((state.folder / "storage" / "objects").glob("??/*")):
        copy = target / "storage" / "objects" / path.parent.name / path.name
        with suppress(FileNotFoundError):
            if not copy.exists() or copy.stat().st_size != path.stat().st_size:
                private_folder(copy.parent)
                shutil.copy2(path, copy.with_suffix(".new"))
                copy.with_suffix(".new").replace(copy)


def _check_own(state: State, target: Path) -> None:
    """Raise StackError where the folder holds a backup of another stack, which this one would replace. A stack keeps its
    database's password for life, and who is restored from a backup has the same."""
    kept = target / SECRETS
    if kept.exists() and json.loads(kept.read_text())["postgres"] != state.secrets().postgres:
        raise StackError(f"{target} holds a backup of another stack", "name another folder; nothing was changed in this one")


def in_bucket() -> str | None:
    """The bucket that holds this stack's objects, which is backed up by its own means."""
    url = os.environ.get("MOTET_STORAGE_URL", "")
    return url if url and not url.startswith("file://") else None


def restore(state: State, source: Path) -> None:
    """Create the state folder from a backup. It must contain neither secrets nor a database."""
    if (state.folder / SECRETS).exists():
        raise StackError(f"{state.folder} is in use", "name another one with MOTET_STATE_DIR, or remove it")
    if not state.lock():
        raise StackError("a stack is starting there", "wait, or name another folder with MOTET_STATE_DIR")
    if (source / "storage").exists():
        shutil.copytree(source / "storage", state.folder / "storage", dirs_exist_ok=True)
    state.take_secrets(source / SECRETS)
    with running_postgres(postgres_of(state, choose_account())) as postgres:
        postgres.create_database()
        engine = create_engine(postgres.url(), connect_args=CONNECT)
        with engine.begin() as connection:
            roles.ensure(connection)  # the dump grants rights to roles but does not create them
        _tool(postgres, "pg_restore", "--dbname=motet", "--exit-on-error", "--no-owner", str(source / _DUMP))
        with engine.begin() as connection:
            connection.execute(text("ANALYZE"))  # a dump holds no statistics
        engine.dispose()


def _tool(postgres: Postgres, name: str, *words: str, grows: Path | None = None) -> None:
    """Run one of PostgreSQL's own programs against this server, as its owner. It is killed once the file that `grows` has not
    grown for _STALL_SECONDS: a server that hangs enforces no timeout."""
    command = [str(installed() / "bin" / name), *words]
    environment = os.environ | postgres.environment() | {"PGCONNECT_TIMEOUT": str(_CONNECT_SECONDS)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tool:
        said, size = None, -1
        while said is None:
            try:
                _, said = tool.communicate(timeout=_STALL_SECONDS)
            except subprocess.TimeoutExpired:
                before, size = size, grows.stat().st_size if grows is not None and grows.exists() else 0
                if grows is not None and size <= before:
                    tool.kill()
                    why = f"{name} got nothing from Postgres for {_STALL_SECONDS:g} s"
                    raise StackError(why, "is Postgres running?") from None
    if tool.returncode != 0:
        raise StackError(f"{name} failed: {said.strip()}", "see what it says; nothing was changed in the stack")


@contextmanager
def running_postgres(postgres: Postgres) -> Iterator[Postgres]:
    """Runs the server for the length of the block. The caller holds the lock of its state folder."""
    process, deadline = postgres.start(), time.monotonic() + _READY_SECONDS
    try:
        while not postgres.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise died(postgres.name, "did not come up", postgres.log)
            time.sleep(0.05)  # polled: a starting server sends no event
        yield postgres
    finally:
        process.send_signal(postgres.asks)
        process.wait()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.backup", description="Back up a running stack, or restore one.")
    parser.add_argument("folder", type=Path, help="where the backup lies")
    parser.add_argument("--restore", action="store_true", help="make the state folder from it")
    chosen = parser.parse_args(arguments)
    try:
        (restore if chosen.restore else back_up)(State(state_folder()), chosen.folder.absolute())
    except StackError as error:
        print(f"motet: {error}", file=sys.stderr)
        return 1
    print(f"restored {state_folder()}" if chosen.restore else f"backed up to {chosen.folder}")
    if (bucket := in_bucket()) is not None:
        print(f"objects are in {bucket}: back them up and restore them by the bucket's own means (versions, replication)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
