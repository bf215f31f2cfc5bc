"""The node's credential, kept in its own folder (mode 600) from one start of the daemon to the next. Knows no network.

It is renewed at each registration. The new one is written down before it is proposed, so that whichever of the two the service
knows, after an answer that got lost or a kill at any moment, is here.
"""

import json
import logging
import os
import secrets
from pathlib import Path

log = logging.getLogger(__name__)

_NAME = "credential.json"


class NodeCredential:
    """`current` is what the service last confirmed, `proposed` what it may know once it was sent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        read = self._read()
        self._current, self._proposed = read.get("current"), read.get("proposed")
        self._sent = self._proposed is not None

    def propose(self) -> str:
        """The credential to register under. One that was proposed and never confirmed is proposed again. Raises OSError."""
        proposed = self._proposed or "nc_" + secrets.token_urlsafe(32)
        self._write({"current": self._current, "proposed": proposed})
        self._proposed = proposed
        return proposed

    def bearers(self, join_token: str | None) -> list[str]:
        """What a registration may be authorized by, the likeliest first; the proposal is sent with it."""
        known = (self._proposed if self._sent else None, self._current, join_token)
        self._sent = True
        return [bearer for bearer in known if bearer is not None]

    def confirm(self, credential: str) -> None:
        """The service welcomed the node under this one. Raises OSError."""
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
        """Whole or not at all, and on disk before anything relies on it."""
        draft = self.path.with_name(_NAME + ".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({name: value for name, value in said.items() if value is not None}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
