"""Finds the service's address and key: from arguments, then the environment, then the file that a local stack wrote.

A key from the state folder is only sent to the address stored beside it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from motet.api.errors import NoCredentials

_START_ONE = "start a stack with `motet up`, or set MOTET_API_URL and MOTET_API_KEY"


@dataclass(frozen=True)
class Credentials:
    """`admin_key` registers models and lists nodes; None where only a tenant's key is known."""

    api_url: str
    key: str
    admin_key: str | None = None


def state_folder() -> Path:
    """$MOTET_STATE_DIR, else $XDG_STATE_HOME/motet, else ~/.local/state/motet."""
    if folder := os.environ.get("MOTET_STATE_DIR"):
        return Path(folder).expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "motet"


def credentials_file() -> Path:
    """The file that a local stack writes at its start, mode 600."""
    return state_folder() / "credentials.json"


def find(api_url: str | None = None, key: str | None = None, admin_key: str | None = None) -> Credentials:
    """The credentials to use. Raises NoCredentials, which says how to supply them."""
    url = (api_url or os.environ.get("MOTET_API_URL") or "").strip()
    key = _one_word("MOTET_API_KEY", key or os.environ.get("MOTET_API_KEY"))
    admin_key = _one_word("MOTET_ADMIN_KEY", admin_key or os.environ.get("MOTET_ADMIN_KEY"))
    if url and key:
        return Credentials(url.rstrip("/"), key, admin_key)
    local = _local()
    if local is None:
        raise NoCredentials(f"no Motet to talk to: {_missing(url, key)} and {credentials_file()} does not exist; {_START_ONE}")
    if url and url.rstrip("/") != local.api_url:
        raise NoCredentials(
            f"no key for {url}: MOTET_API_KEY is not set, and the keys in {credentials_file()} are for {local.api_url}"
        )
    return Credentials(local.api_url, key or local.key, admin_key or local.admin_key)


def _one_word(name: str, key: str | None) -> str | None:
    """The key without the white space around it, such as a file's last newline."""
    key = (key or "").strip()
    if any(not "!" <= character <= "~" for character in key):
        raise NoCredentials(f"{name} is not a key: it holds white space or another character that no key has; copy it anew")
    return key or None


def _missing(url: str, key: str | None) -> str:
    names = [name for name, value in (("MOTET_API_URL", url), ("MOTET_API_KEY", key)) if not value]
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not set"


def _local() -> Credentials | None:
    path = credentials_file()
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(said["api_url"].rstrip("/"), said["demo_key"], said["admin_key"])
    except FileNotFoundError:
        return None
    except PermissionError:
        raise NoCredentials(
            f"{path} belongs to another user; set MOTET_API_URL and MOTET_API_KEY, or MOTET_STATE_DIR"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoCredentials(f"{path} is damaged; restart the stack with `motet up`, which writes it anew") from None
