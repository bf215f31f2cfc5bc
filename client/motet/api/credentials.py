"""Finds the service's address and key: from arguments, then the environment, then `motet login`, then a local stack's file.

A stored key is only sent to the address stored beside it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from contract.processes.local_stack import CREDENTIALS, state_folder
from motet.api import keyring
from motet.api.errors import NoCredentials

NO_ADMIN_KEY = "this needs an admin key: set MOTET_ADMIN_KEY, `motet login --admin`, or use the machine where `motet up` runs"
_START_ONE = "start a stack with `motet up`, `motet login` to one that runs, or set MOTET_API_URL and MOTET_API_KEY"


@dataclass(frozen=True)
class Credentials:
    """`admin_key` opens what admins do; None where only a tenant's key is known."""

    api_url: str
    key: str
    admin_key: str | None = None


def credentials_file() -> Path:
    """The file that a local stack writes at its start, mode 600."""
    return state_folder() / CREDENTIALS


def find(
    api_url: str | None = None, key: str | None = None, admin_key: str | None = None, service: str | None = None
) -> Credentials:
    """The credentials to use. Raises NoCredentials, which says how to supply them.

    `service` (else MOTET_SERVICE) names one that `motet login` knows, or `local`; then nothing else is looked at.
    """
    named = service or os.environ.get("MOTET_SERVICE")
    if named and not api_url:
        return _named(named)
    url = (api_url or os.environ.get("MOTET_API_URL") or "").strip().rstrip("/")
    key = _one_word("MOTET_API_KEY", key or os.environ.get("MOTET_API_KEY"))
    admin_key = _one_word("MOTET_ADMIN_KEY", admin_key or os.environ.get("MOTET_ADMIN_KEY"))
    if url and key:
        return Credentials(url, key, admin_key)
    stored = _stored(url)
    if stored is None:
        missing = _missing(url, key)
        raise NoCredentials(f"no Motet to talk to: {missing} and {credentials_file()} does not exist; {_START_ONE}")
    if url and url != stored.api_url:
        raise NoCredentials(
            f"no key for {url}: MOTET_API_KEY is not set, and the keys at hand are for {stored.api_url}; `motet login {url}`"
        )
    return Credentials(stored.api_url, key or stored.key, admin_key or stored.admin_key)


def _named(service: str) -> Credentials:
    if service == keyring.LOCAL:
        if (local := _local()) is None:
            raise NoCredentials(f"no stack runs on this machine: {credentials_file()} does not exist; `motet up` starts one")
        return local
    known = keyring.load().logins
    if service not in known:
        names = ", ".join([*sorted(known), keyring.LOCAL])
        raise NoCredentials(
            f"there is no service {service!r}; known are {names}, and `motet login URL --name {service}` adds it"
        )
    return _of(known[service])


def _stored(url: str) -> Credentials | None:
    """The login of this address, or without one the login in use; else the local stack."""
    ring = keyring.load()
    logins = [login for login in ring.logins.values() if login.api_url == url]
    if not url and ring.current is not None:
        logins = [ring.logins[ring.current]]
    return _of(logins[0]) if logins else _local()


def _of(login: keyring.Login) -> Credentials:
    return Credentials(login.api_url, login.key, login.admin_key)


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
