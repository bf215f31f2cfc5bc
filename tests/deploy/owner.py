"""Runs the supervisor over both servers, a keeper and one busy child, as the stack does. Events go to stdout."""

import sys
from pathlib import Path

from deploy.devstack.__main__ import emit
from deploy.devstack.postgres import Postgres
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.private_folders import private_folder
from deploy.devstack.programs import Module, ProcessReaper
from deploy.devstack.stack_errors import StackError
from deploy.devstack.supervisor import StopAsked, Supervisor
from deploy.devstack.valkey import Valkey


def main(folder: Path, elsewhere: Path, mood: str) -> None:
    logs = private_folder(folder / "logs")
    mark = f"test.{folder.name}"
    account = choose_account()
    private_folder(folder, 0o711 if account.stranger else 0o700)
    postgres = Postgres(folder / "postgres", elsewhere, logs / "postgres.log", "secret", account)
    valkey = Valkey(folder / "valkey", logs / "valkey.log", "secret")
    busy = Module("busy", ["tests.deploy.busy", str(folder / "pids"), mood], logs / "busy.log", {}, mark, patience=0.5)
    with Supervisor(emit) as supervisor:
        supervisor.start(valkey, postgres, ProcessReaper(logs / "keeper.log", mark))
        supervisor.await_ready(valkey, 60)
        supervisor.await_ready(postgres, 60)
        postgres.create_database()
        supervisor.start(busy)
        emit({"event": "ready", "url": postgres.url(), "redis": valkey.url(), "pids": supervisor.pids})
        supervisor.watch(lambda: None)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except StopAsked:
        emit({"event": "stopped"})
    except StackError as error:
        emit({"event": "failed", "message": error.message, "fix": error.fix})
