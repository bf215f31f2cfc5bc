"""The node's credential, stored in its own folder (mode 600) across starts of the daemon. Knows no network.

Each registration renews it. The daemon writes the new credential to disk before it proposes it, so that after a lost answer or
a kill at any moment the file still holds the one that the service knows.
"""

import json
import logging
import os
import secrets
from pathlib import Path

from worker.data.disk_sync import sync

log = logging.getLogger(__name__)

_NAME = "credential.json"


class NodeCredential:
    """`current`: the credential that the service last confirmed. `proposed`: one that it may know once it was sent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        read = self._read()
        self._current, self._proposed = read.get("current"), read.get("proposed")
        self._sent = self._proposed is not None

    def propose(self) -> str:
        """The credential to register under; repeats a proposal that was never confirmed. Raises OSError."""
        proposed = self._proposed or "nc_" + secrets.token_urlsafe(32)
        self._write({"current": self._current, "proposed": proposed})
        self._proposed = proposed
        return proposed

    def bearers(self, join_token: str | None) -> list[str]:
        """Bearer tokens that may authorize a registration, the likeliest first; the request also carries the proposal."""
        known = (self._proposed if self._sent else None, self._current, join_token)
        self._sent = True
        return [bearer for bearer in known if bearer is not None]

    def confirm(self, credential: str) -> None:
        """Store the credential that the service accepted. Raises OSError."""
        self._write({"current": credential})
        self._current, self._proposed, self._sent = credential, None, False

    def _read(self) -> dict[str, str]:
        try:
            said = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            log.warning("%s is damaged, so the node needs a join token: %s", self.path, error)
            return {}
        known = said.items() if isinstance(said, dict) else ()
        return {name: value for name, value in known if isinstance(value, str)}

    def _write(self, said: dict[str, str | None]) -> None:
        """Write atomically, and sync to disk before anything relies on it."""
        draft = self.path.with_name(_NAME + ".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({name: value for name, value in said.items() if value is not None}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        sync(self.path.parent)
