"""The state folder that persists between a stack's runs: secrets, lock, what runs now. Knows no servers, nor where it lies
(contract/processes/local_stack.py). One stack at a time holds its lock."""

import fcntl
import json
import math
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from deploy.devstack.private_folders import private_file, private_folder
from deploy.devstack.stack_errors import StackError, trouble_of

_LONG_LOG_BYTES = 16 * 2**20
SECRETS = "secrets.json"
_ANSWER_SECONDS = 25 * 3600.0  # an hour longer than an answer under an Idempotency-Key is kept


@dataclass(frozen=True)
class Secrets:
    """Created at the first start and reused. `mark` tags the stack's processes; it grants no access."""

    postgres: str
    valkey: str
    secret_key: str
    mark: str


class State:
    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self.logs = private_folder(folder / "logs")
        self._lock: IO[Any] | None = None

    @property
    def running(self) -> dict[str, Any] | None:
        """What the running stack wrote about itself once it was ready; None before that."""
        try:
            return dict(json.loads((self.folder / "stack.json").read_text()))
        except FileNotFoundError:
            return None

    def announce(self, what: dict[str, Any]) -> None:
        private_file(self.folder / "stack.json", json.dumps(what))

    def lock(self) -> bool:
        """Try to own the folder; returns whether this process does. The kernel releases the lock when the process ends in any
        way."""
        lock = self._open_lock()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        self.forget()
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > _LONG_LOG_BYTES:
                log.replace(log.with_suffix(".log.old"))
        return True

    def await_owner(self) -> None:
        """Sleep until no process owns the folder. A signal handler that raises ends the sleep."""
        with self._open_lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def forget(self) -> None:
        """Remove the record of the running stack."""
        (self.folder / "stack.json").unlink(missing_ok=True)

    def secrets(self) -> Secrets:
        path = self.folder / SECRETS
        if not path.exists():
            private_file(path, json.dumps(asdict(Secrets(*(secrets.token_hex(32) for _ in fields(Secrets)))), indent=1))
        try:
            said = json.loads(path.read_text())
            return Secrets(**{field.name: said[field.name] for field in fields(Secrets)})  # an older file holds more
        except OSError as error:
            raise trouble_of(error) from error
        except (ValueError, TypeError, KeyError) as error:
            fix = f"restore {path} from a copy, or remove {self.folder} to begin anew (its tasks and adapters are lost)"
            raise StackError(f"{path} is damaged: {error}", fix) from error

    def take_secrets(self, path: Path) -> None:
        """Those of another stack, whose data this folder gets: with a mark of its own, since a stack ends all processes of its
        mark as it starts; and with all earlier keys, since the data may be older than the newest one."""
        said = json.loads(path.read_text())
        earlier = [one | {"resealed_at": None} for one in said.get("secret_keys_before", [])]
        said |= {"mark": secrets.token_hex(32), "secret_keys_before": earlier}
        private_file(self.folder / SECRETS, json.dumps(said, indent=1))

    def rotate_key(self) -> None:
        """Replace the secret key from the next start on, which seals everything anew under it. The one before is kept to open
        what it sealed."""
        now = self.secrets().secret_key
        said = json.loads((self.folder / SECRETS).read_text())
        said["secret_keys_before"] = [*said.get("secret_keys_before", []), {"key": now, "resealed_at": None}]
        private_file(self.folder / SECRETS, json.dumps(said | {"secret_key": secrets.token_hex(32)}, indent=1))

    def earlier_keys(self) -> list[str]:
        """Secret keys that may still have sealed something: answers under Idempotency-Keys live for a day after the start with
        the next key, and are not sealed anew."""
        return [one["key"] for one in self._earlier() if (one["resealed_at"] or math.inf) > time.time() - _ANSWER_SECONDS]

    def note_resealed(self, before: Sequence[str]) -> None:
        """Nothing that lasts is sealed under these earlier keys any more; one that was replaced meanwhile is not among them."""
        kept, now = set(self.earlier_keys()), time.time()
        said = json.loads((self.folder / SECRETS).read_text())
        earlier = [
            one | {"resealed_at": one["resealed_at"] or (now if one["key"] in before else None)}
            for one in self._earlier()
            if one["key"] in kept
        ]
        private_file(self.folder / SECRETS, json.dumps(said | {"secret_keys_before": earlier}, indent=1))

    def _earlier(self) -> list[dict[str, Any]]:
        self.secrets()  # makes the file, or says that it is damaged
        return list(json.loads((self.folder / SECRETS).read_text()).get("secret_keys_before", []))

    def _open_lock(self) -> IO[Any]:
        try:
            return os.fdopen(os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+")
        except OSError as error:
            raise trouble_of(error) from error
