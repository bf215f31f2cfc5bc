"""The whole of Motet on one machine: which programs, in which order, with which environment. Knows no signals and no locks."""

import hashlib
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from deploy.devstack import process_reaper
from deploy.devstack.postgres import Postgres
from deploy.devstack.postgres_account import Account, choose_account
from deploy.devstack.private_folders import private_folder
from deploy.devstack.programs import Module, ProcessReaper
from deploy.devstack.stack_errors import StackError
from deploy.devstack.state_folder import State
from deploy.devstack.supervisor import Supervisor
from deploy.devstack.valkey import Valkey
from worker.host_name import host_name

DEFAULT_PORT, DEFAULT_TRANSFER_PORT = 8321, 8323
_ELSEWHERE = Path("/var/lib/motet")
_SERVER_SECONDS, _API_SECONDS = 120.0, 120.0
_WORKER_PATIENCE = 10.0  # beyond the time that it may take for a last checkpoint
_STOP_SECONDS = "MOTET_WORKER_STOP_SECONDS", "30"  # the worker's variable and default


@dataclass(frozen=True)
class Options:
    """`port`: None takes the default port, or a free one if that is taken. `slots`: CPU slots of a worker without GPUs.
    `api_processes`: None leaves the number to the service. `transfer_port`: as `port`, and 0 for none."""

    host: str = "127.0.0.1"
    port: int | None = None
    workers: int = 1
    slots: int | None = None
    device: str | None = None
    api_processes: int | None = None
    transfer_port: int | None = None


class Stack:
    def __init__(self, state: State, options: Options) -> None:
        self._state = state
        self._options = options
        self._secrets = state.secrets()
        self._join_token = secrets.token_hex(32)  # new at each start: our own workers can join even if they lost their folder
        process_reaper.kill(self._secrets.mark)  # what an earlier run's reaper has not ended yet may hold the port
        self._port = Port(options.host, options.port)
        self._transfer_port: Port | None = None
        if _over_a_folder() if options.transfer_port is None else options.transfer_port > 0:
            self._transfer_port = Port(options.host, options.transfer_port, DEFAULT_TRANSFER_PORT)
        self._mark = f"{self._secrets.mark}.{secrets.token_hex(4)}"
        account = choose_account()
        folder = state.folder
        private_folder(folder, 0o711 if account.stranger else 0o700)
        private_folder(folder / "storage")
        self._postgres = postgres_of(state, account)
        self._valkey = valkey_of(state)

    @property
    def api_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._options.host, self._options.host)
        return f"http://{host}:{self._port.number}"

    @property
    def port(self) -> int:
        """Of the API."""
        return self._port.number

    @property
    def transfer_port(self) -> int | None:
        return self._transfer_port.number if self._transfer_port is not None else None

    @property
    def instead_of(self) -> int | None:
        """The default port, if the API has another one because that was taken."""
        return self._port.instead_of

    def start(self, supervisor: Supervisor) -> None:
        """Start everything. Raises StackError, or StopAsked when told to stop meanwhile."""
        supervisor.start(self._valkey, self._postgres, ProcessReaper(self._state.logs / "keeper.log", self._mark))
        supervisor.await_ready(self._valkey, _SERVER_SECONDS)
        supervisor.await_ready(self._postgres, _SERVER_SECONDS)
        self._postgres.create_database()
        supervisor.run(self._service("migrate", MOTET_OWNER_DATABASE_URL=self._postgres.url()))
        if earlier := self._state.earlier_keys():
            supervisor.run(self._service("reseal"))
            self._state.note_resealed(earlier)
        api = self._service("api")
        supervisor.start(api, self._service("queue"), self._service("reconcile"))
        workers = {self._node_name(number): number for number in range(1, self._options.workers + 1)}
        nodes = ",".join(workers)
        supervisor.run(self._service("bootstrap", MOTET_JOIN_TOKEN=self._join_token, MOTET_JOIN_NODES=nodes))
        supervisor.start(*(self._worker(number, name) for name, number in workers.items()))
        supervisor.await_ready(api, _API_SECONDS)

    def sweep(self) -> None:
        """End the processes that stopped programs left behind."""
        process_reaper.kill(self._mark)

    def _service(self, word: str, **more: str) -> Module:
        env = more | service_environment(self._state, self._postgres, self._valkey)
        env |= {"MOTET_HOST": self._options.host, "MOTET_PORT": str(self._port.number)}
        env["MOTET_TRANSFER_PORT"] = str(self.transfer_port or "")  # an empty variable counts as left out
        if self._options.api_processes is not None:
            env["MOTET_API_PROCESSES"] = str(self._options.api_processes)
        port = self._port.number if word == "api" else None
        return Module(word, ["service", word], self._state.logs / f"{word}.log", env, self._mark, port)

    def _node_name(self, number: int) -> str:
        if self._options.workers == 1:
            return os.environ.get("MOTET_NODE_NAME") or host_name()
        return _program_name(number)

    def _worker(self, number: int, node_name: str) -> Module:
        name = _program_name(number)
        env = {
            "MOTET_API_URL": self.api_url,
            "MOTET_REDIS_URL": self._valkey.url("node"),
            "MOTET_JOIN_TOKEN": self._join_token,
            "MOTET_NODE_NAME": node_name,
            "MOTET_WORKER_DIR": str(private_folder(self._state.folder / "worker")),
        }
        if self._options.workers > 1:
            env["MOTET_WORKER_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // self._options.workers))
        if self._options.slots is not None:
            env["MOTET_WORKER_SLOTS"] = str(self._options.slots)
        if self._options.device is not None:
            env["MOTET_WORKER_DEVICE"] = self._options.device
        patience = _WORKER_PATIENCE + float(os.environ.get(*_STOP_SECONDS))
        return Module(name, ["worker"], self._state.logs / f"{name}.log", env, self._mark, patience=patience)


def _over_a_folder() -> bool:
    url = os.environ.get("MOTET_STORAGE_URL")
    return not url or url.startswith("file://")


def _program_name(number: int) -> str:
    return "worker" if number == 1 else f"worker-{number}"


def postgres_of(state: State, account: Account) -> Postgres:
    """The database server of this state folder, running or not."""
    secret = state.secrets().postgres
    # its name includes the secret: a recreated state folder must not find data with another password
    elsewhere = _ELSEWHERE / hashlib.sha256(f"{state.folder} {secret}".encode()).hexdigest()[:16]
    return Postgres(state.folder / "postgres", elsewhere, state.logs / "postgres.log", secret, account)


def valkey_of(state: State) -> Valkey:
    """The Valkey of this state folder, running or not."""
    return Valkey(state.folder / "valkey", state.logs / "valkey.log", state.secrets().valkey)


def service_environment(state: State, postgres: Postgres, valkey: Valkey) -> dict[str, str]:
    """The variables of the service's programs on this state folder, but for those of the API's address."""
    env = {
        "MOTET_DATABASE_URL": postgres.url(role="motet_system"),
        "MOTET_APP_DATABASE_URL": postgres.url(role="motet_app"),
        "MOTET_REDIS_URL": valkey.url("service"),
        "MOTET_SECRET_KEY": state.secrets().secret_key,
        "MOTET_STORAGE_DIR": str(state.folder / "storage"),
        "MOTET_STATE_DIR": str(state.folder),
    }
    earlier = state.earlier_keys()
    return env | ({"MOTET_SECRET_KEYS_BEFORE": ",".join(earlier)} if earlier else {})


class Port:
    """A port that was free when chosen, and that no other stack of this machine chooses while this one runs.

    The API binds it only once the servers run, seconds later. Until then a name in the kernel's abstract socket namespace
    reserves it: all accounts see the name, and the kernel frees it when its owner ends in any way.
    """

    def __init__(self, host: str, wanted: int | None, default: int = DEFAULT_PORT) -> None:
        """Raises StackError if the requested port is taken; None takes the default one, or any free one if that is taken."""
        self._claim = socket.socket(socket.AF_UNIX)
        self.instead_of: int | None = None
        if wanted is not None:
            if not self._take(host, wanted):
                raise StackError(
                    f"port {wanted} of {host} is taken", "stop what listens there, or leave the port out to get a free one"
                )
            self.number = wanted
            return
        self.number = default
        while not self._take(host, self.number):
            with socket.create_server((host, 0)) as server:
                self.number, self.instead_of = int(server.getsockname()[1]), default

    def _take(self, host: str, number: int) -> bool:
        try:
            socket.create_server((host, number)).close()
            self._claim.bind(f"\0motet port {number}")
        except OSError:
            return False
        return True
