"""First start: creates the tenants `admin` and `demo`, writes a key for each to the credentials file that the local command
line reads, and creates a join token for the nodes in the settings.

Idempotent: a later start changes nothing. If the file is lost it mints new keys, since the database stores only their hashes.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from contract.processes.local_stack import CREDENTIALS
from service.database.engine import Database, new_id
from service.fleet.join_tokens import is_reusable, provide
from service.settings import Settings, say
from service.tenants.api_keys import Scope, check_key, mint_key
from service.tenants.models import ApiKey, Tenant

_KEY_NAME = "bootstrap"
_SCOPES = {"admin": tuple(Scope), "demo": (Scope.READ, Scope.WRITE)}
_JOIN_WITHIN, _ALL_JOIN_WITHIN = timedelta(hours=24), timedelta(days=365)  # one node; all of a prefix, renewed at each start
_LOCK = 0x626F6F74  # "boot"


def run(settings: Settings) -> None:
    """The command `bootstrap`."""
    for sentence in bootstrap(settings):
        say(sentence)


def bootstrap(settings: Settings) -> list[str]:
    """Ensure both tenants, a file with a working key for each, and the join token; returns a sentence for each change.

    An advisory lock serializes concurrent runs.
    """
    path = settings.state_dir / CREDENTIALS
    said: list[str] = []
    db = Database(settings.database_url, pool_size=1, timeouts=settings.request_timeouts)
    with db.begin() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        before = _read(path)
        kept = {"api_url": settings.api_url}
        for name in _SCOPES:
            kept[f"{name}_key"] = _key_for(session, name, before.get(f"{name}_key"), said)
        _let_join(session, settings, said)
        if kept != before:
            _write(path, kept)  # before the commit: a committed key whose file was not written would be unusable
            said.append(f"wrote {path}")
    db.engine.dispose()
    return said or [f"nothing to do: the keys in {path} work"]


def _key_for(session: Session, name: str, before: str | None, said: list[str]) -> str:
    """The tenant's key from the file if it still works; otherwise a new one."""
    tenant = session.scalar(select(Tenant).where(Tenant.name == name))
    if tenant is None:
        tenant = Tenant(id=new_id("tenant"), name=name)
        session.add(tenant)
        session.flush()
        said.append(f"made the tenant {name!r}")
    if before is not None:
        found = check_key(session, before).principal
        if found is not None and found.tenant_id == tenant.id and found.scopes == frozenset(_SCOPES[name]):
            return before
    old = list(session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == tenant.id, ApiKey.name == _KEY_NAME)))
    _, secret = mint_key(session, tenant.id, _KEY_NAME, _SCOPES[name])
    said.append(f"made a new key for {name!r}" + (_about(old, before) if old else ""))
    return secret


def _let_join(session: Session, settings: Settings, said: list[str]) -> None:
    """Register the operator's join token: for one join of each node in `join_nodes`, for any number of those of a prefix."""
    if settings.join_token is None:
        return
    if not settings.join_nodes:
        said.append("MOTET_JOIN_TOKEN lets nobody join: MOTET_JOIN_NODES names no node")
    for name in settings.join_nodes:
        within = _ALL_JOIN_WITHIN if is_reusable(name) else _JOIN_WITHIN
        if provide(session, name, settings.join_token.get_secret_value(), within):
            who = f"nodes {name}" if is_reusable(name) else f"node {name}"
            said.append(f"{who} may join within {within.total_seconds() / 3600:g} hours")


def _about(old: list[str], before: str | None) -> str:
    why = "the file with the earlier one was not found" if before is None else "the one in the file does not work"
    return f": {why}. Earlier keys that nobody needs can be revoked: {', '.join(f'DELETE /v1/admin/keys/{id}' for id in old)}"


def _read(path: Path) -> Mapping[str, str]:
    try:
        said = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        return {}  # not valid JSON: its keys count as lost
    return said if isinstance(said, dict) else {}


def _write(path: Path, credentials: Mapping[str, str]) -> None:
    """Write the file atomically, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it mode 600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(credentials, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
