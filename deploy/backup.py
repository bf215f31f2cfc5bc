"""`python -m deploy.backup FOLDER`: what a running stack knows, as a folder that another can begin from. Stops nothing.

FOLDER gets database.dump, secrets.json and storage/; a second run brings it up to date. The database is read before storage:
objects are immutable and outlive by a day the rows that refer to them, so every row finds its own.
`python -m deploy.backup --restore FOLDER` makes the state folder from it, where there is none yet.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine

from deploy.devstack.binaries import installed
from deploy.devstack.postgres import Postgres
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.private_folders import private_folder
from deploy.devstack.stack import postgres_of
from deploy.devstack.stack_errors import StackError, died
from deploy.devstack.state_folder import State, default_folder
from service.database import roles

_DUMP = "database.dump"
_READY_SECONDS = 120.0


def back_up(state: State, target: Path) -> None:
    """Copy what the stack of this folder knows. It must be running."""
    if state.running is None:
        raise StackError("nothing runs there", "start it with `motet up`, or copy the whole folder of a stack that is stopped")
    private_folder(target)
    draft = target / f"{_DUMP}.new"
    _tool(postgres_of(state, choose_account()), "pg_dump", "--format=custom", f"--file={draft}")
    draft.replace(target / _DUMP)
    shutil.copy2(state.folder / "secrets.json", target / "secrets.json")
    for path in sorted((state.folder / "storage" / "objects").glob("??/*")):
        copy = target / "storage" / "objects" / path.parent.name / path.name
        if not copy.exists() or copy.stat().st_size != path.stat().st_size:
            private_folder(copy.parent)
            shutil.copy2(path, copy.with_suffix(".new"))
            copy.with_suffix(".new").replace(copy)


def restore(state: State, source: Path) -> None:
    """Make the state folder from a backup. There must be neither secrets nor a database in it."""
    if (state.folder / "secrets.json").exists():
        raise StackError(f"{state.folder} is in use", "name another one with MOTET_STATE_DIR, or remove it")
    if not state.lock():
        raise StackError("a stack is starting there", "wait, or name another folder with MOTET_STATE_DIR")
    shutil.copytree(source / "storage", state.folder / "storage", dirs_exist_ok=True)
    shutil.copy2(source / "secrets.json", state.folder / "secrets.json")
    with _running(postgres_of(state, choose_account())) as postgres:
        postgres.create_database()
        with create_engine(postgres.url()).begin() as connection:
            roles.ensure(connection)  # the dump says what they may do, and not that they are there
        _tool(postgres, "pg_restore", "--dbname=motet", "--exit-on-error", "--no-owner", str(source / _DUMP))


def _tool(postgres: Postgres, name: str, *words: str) -> None:
    """One of PostgreSQL's own programs, speaking to this server as its owner."""
    command = [str(installed() / "bin" / name), *words]
    done = subprocess.run(command, env=os.environ | postgres.environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StackError(f"{name} failed: {done.stderr.strip()}", "see what it says; nothing was changed in the stack")


@contextmanager
def _running(postgres: Postgres) -> Iterator[Postgres]:
    process, deadline = postgres.start(), time.monotonic() + _READY_SECONDS
    try:
        while not postgres.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise died(postgres.name, "did not come up", postgres.log)
            time.sleep(0.05)  # a server that starts sends us no event
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
        (restore if chosen.restore else back_up)(State(default_folder()), chosen.folder.absolute())
    except StackError as error:
        print(f"motet: {error}", file=sys.stderr)
        return 1
    print(f"restored {default_folder()}" if chosen.restore else f"backed up to {chosen.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
