"""The services that `motet login` knows: addresses and keys in one file of mode 600, and which of them is in use.

`$XDG_CONFIG_HOME/motet/keyring.json`, else `~/.config/motet/keyring.json`. Written whole and renamed into place.
"""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from motet.api.errors import NoCredentials

LOCAL = "local"  # the stack on this machine, whose keys lie in its state folder


@dataclass(frozen=True)
class Login:
    """One service. `admin_key`: a second key for admins' calls."""

    api_url: str
    key: str
    admin_key: str | None = None


@dataclass
class Keyring:
    """`current` names the service that is used where nothing else is said; None: the local stack."""

    path: Path
    logins: dict[str, Login] = field(default_factory=dict)
    current: str | None = None

    def save(self) -> None:
        """Write the file anew, readable by its owner alone. Raises NoCredentials where that cannot be."""
        services = {
            name: {field: value for field, value in vars(login).items() if value is not None}
            for name, login in self.logins.items()
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, draft = tempfile.mkstemp(dir=self.path.parent, prefix=".keyring.")  # mkstemp makes it mode 600
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"current": self.current, "services": services}, file, indent=2)
            Path(draft).replace(self.path)
        except OSError as error:
            raise NoCredentials(f"cannot write {self.path}: {error.strerror}") from error


def keyring_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "motet" / "keyring.json"


def load() -> Keyring:
    """The keyring, empty where there is none yet. Raises NoCredentials where the file is damaged, or others may read it."""
    path = keyring_file()
    try:
        if path.stat().st_mode & 0o077:
            raise NoCredentials(f"others may read {path}, which holds keys; make it private: chmod 600 {path}")
        said: Any = json.loads(path.read_text(encoding="utf-8"))
        logins = {str(name): Login(**one) for name, one in said["services"].items()}
        current = said.get("current")
    except FileNotFoundError:
        return Keyring(path)
    except OSError as error:
        raise NoCredentials(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoCredentials(f"{path} is damaged; remove it and log in again with `motet login`") from None
    return Keyring(path, logins, current if current in logins else None)
