"""`python -m deploy.operator_commands WORD ...`: what an operator does with a deployment's own settings; the result as JSON.

Where MOTET_DATABASE_URL is set, with the deployment of this environment; else with the stack of the state folder. Events, one a
line: done {of, ...}; failed {message, fix}. Exit code 0 after done, 1 after failed. `motet admin` runs it.
"""

import argparse
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psycopg import OperationalError as ConnectionFailed
from sqlalchemy.exc import OperationalError

from contract.processes.local_stack import state_folder
from deploy.backup import running_postgres
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.private_folders import private_file
from deploy.devstack.stack import postgres_of, service_environment, valkey_of
from deploy.devstack.stack_errors import StackError, trouble_of
from deploy.devstack.state_folder import SECRETS, State
from service.background.resealing import reseal
from service.backup.backup_creation import fingerprint, take
from service.backup.catalogue import Manifest, catalogue_in
from service.backup.restore import bring_back
from service.backup.verification import manifests, verified
from service.settings import Settings, SettingsError
from service.storage.object_store import StorageAway, StorageRefused
from service.storage.storage_move import damage_words, move

_NO_SERVERS = {
    **dict.fromkeys(("MOTET_DATABASE_URL", "MOTET_APP_DATABASE_URL"), "postgresql+psycopg://nobody@/none"),
    **{"MOTET_REDIS_URL": "unix:///nowhere", "MOTET_STORAGE_DIR": "/nowhere"},
}
Result = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What a command works on. `state`: of the stack on this machine; None: the deployment of this environment."""

    words: str
    environment: dict[str, str]
    state: State | None = None

    def settings(self, url: str | None, name: str | None) -> Settings:
        said = {"MOTET_BACKUP_URL": url, "MOTET_BACKUP_NAME": name}
        os.environ.update(self.environment | {variable: value for variable, value in said.items() if value is not None})
        return Settings.load()


def find_target() -> Target:
    """Raises StackError where this machine has neither."""
    if os.environ.get("MOTET_DATABASE_URL"):
        return Target("the deployment of this environment", {})
    folder = state_folder()
    if not (folder / SECRETS).exists():
        fix = "set the variables of `python -m service migrate`, or name the stack's folder with MOTET_STATE_DIR"
        raise StackError(f"there is no stack in {folder}, and MOTET_DATABASE_URL is not set", fix)
    return _stack(State(folder))


def _stack(state: State) -> Target:
    postgres = postgres_of(state, choose_account())
    owner = {"MOTET_OWNER_DATABASE_URL": postgres.url()}
    environment = service_environment(state, postgres, valkey_of(state)) | owner
    return Target(f"the stack in {state.folder}", environment, state)


def back_up(url: str | None, name: str | None) -> Result:
    target = find_target()
    if target.state is not None and target.state.running is None:
        raise StackError(f"nothing runs in {target.state.folder}", "start it with `motet up`")
    settings = target.settings(url, name)
    made, removed = take(settings)
    kept = target.state is not None and _keep_secrets(target.state, settings.backup_url or "", made)
    return _said(target, settings) | {"backup": _told(made), "removed_objects": removed, "with_secrets": kept}


def _keep_secrets(state: State, url: str, made: Manifest) -> bool:
    """Put the stack's secrets beside a backup in a folder, readable by its owner alone. Whether they are there."""
    if not url.startswith("file://"):
        return False
    private_file(_secrets_of(url, made), (state.folder / SECRETS).read_text())
    return True


def _secrets_of(url: str, made: Manifest) -> Path:
    """Where the secrets of a backup in a folder are. A file for each secret key: a stack forgets keys that it has replaced,
    under which earlier backups are sealed, and several stacks may back up into one folder."""
    return Path(url.removeprefix("file://")) / f"secrets-{made.secret_key}.json"


def restore(url: str | None, name: str | None) -> Result:
    """Of a deployment: into its empty database and storage. Without one: makes the stack of the state folder, which must have
    no database yet."""
    if os.environ.get("MOTET_DATABASE_URL"):
        target = find_target()
        settings = target.settings(url, name)
        return _restored(target, settings)
    state = State(state_folder())
    if not state.lock():
        raise StackError(f"a stack runs in {state.folder}", "name a new folder with MOTET_STATE_DIR")
    place = url or os.environ.get("MOTET_BACKUP_URL", "")
    if not (state.folder / SECRETS).exists() and place.startswith("file://"):
        made = catalogue_in(Path(place.removeprefix("file://"))).read(name or os.environ.get("MOTET_BACKUP_NAME"))
        if (beside := _secrets_of(place, made)).is_file():
            state.take_secrets(beside)
    target = _stack(state)
    with running_postgres(postgres_of(state, choose_account())) as postgres:
        postgres.create_database()
        return _restored(target, target.settings(url, name))


def _restored(target: Target, settings: Settings) -> Result:
    made = bring_back(settings)
    return _said(target, settings) | {"backup": _told(made), "other_secret_key": made.secret_key != fingerprint(settings)}


def _reader() -> Target:
    """For who reads backups alone, which takes neither a database nor a key: on a machine that has no deployment, too."""
    if os.environ.get("MOTET_DATABASE_URL") or (state_folder() / SECRETS).exists():
        return find_target()
    return Target("the backups alone", _NO_SERVERS | {"MOTET_SECRET_KEY": secrets.token_hex(32)})


def list_backups(url: str | None, name: str | None) -> Result:
    target = _reader()
    settings = target.settings(url, name)
    return _said(target, settings) | {"backups": [_told(made) for made in manifests(settings)]}


def verify(url: str | None, name: str | None) -> Result:
    target = _reader()
    settings = target.settings(url, name)
    return _said(target, settings) | {"backup": _told(verified(settings))}


def seal_anew(url: str | None, name: str | None) -> Result:
    target = find_target()
    if target.state is not None:
        fix = "`motet admin rotate-key` changes its key, and `motet up` then seals everything anew"
        raise StackError(f"{target.words} has one key, and nothing to seal anew", fix)
    return {"of": target.words, "secrets": reseal(target.settings(url, name))}


def rotate_key(url: str | None, name: str | None) -> Result:
    target = find_target()
    if target.state is None:
        fix = (
            "give all programs the new MOTET_SECRET_KEY and the old one as MOTET_SECRET_KEYS_BEFORE, then `motet admin reseal`"
        )
        raise StackError("the key of this environment's deployment is where its variables come from", fix)
    target.state.rotate_key()
    return {"of": target.words, "running": target.state.running is not None}


def move_storage(url: str | None, name: str | None) -> Result:
    """Copy all objects to `url`, which becomes the storage when the programs start with it as MOTET_STORAGE_URL."""
    target = find_target()
    os.environ["MOTET_STORAGE_MOVE_TO"] = url or ""
    moved = move(target.settings(None, None))
    if moved.damaged:
        raise StackError(
            f"{damage_words(moved)}; {moved.copied} others were", "restore those from a backup, or delete what names them"
        )
    return {"of": target.words, "to": url} | asdict(moved)


COMMANDS: Mapping[str, Callable[[str | None, str | None], Result]] = {
    "backup": back_up,
    "backups": list_backups,
    "verify": verify,
    "restore": restore,
    "reseal": seal_anew,
    "rotate-key": rotate_key,
    "move-storage": move_storage,
}


def _said(target: Target, settings: Settings) -> Result:
    return {"of": target.words, "url": settings.backup_url}


def _told(made: Manifest) -> Result:
    return {
        "name": made.name,
        "rows": sum(made.rows.values()),
        "objects": made.objects,
        "object_bytes": made.object_bytes,
        "motet": made.motet,
        "revision": made.revision,
    }


_MENDABLE = (StackError, SettingsError, OperationalError, ConnectionFailed, OSError)


def _mendable(error: Exception) -> StackError:
    """What an operator can do about it."""
    match error:
        case StackError():
            return error
        case SettingsError():
            return StackError(str(error), "docs/OPERATIONS.md, Backup and restore")
        case StorageAway() | StorageRefused():
            return StackError(f"storage: {error}", "see its address and credentials (docs/OPERATIONS.md, Storage)")
        case OSError():
            return trouble_of(error)
    cause = error.orig if isinstance(error, OperationalError) else error
    return StackError(f"cannot reach the database: {str(cause).strip().splitlines()[0]}", "see that it runs")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.operator_commands", description="An operator's work, by command.")
    parser.add_argument("word", choices=[*COMMANDS])
    parser.add_argument("url", nargs="?", help="where backups lie: file:///folder, s3://bucket/prefix, gs://…, az://…")
    parser.add_argument("--name", help="of a backup; left out, the newest")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        result = COMMANDS[chosen.word](chosen.url, chosen.name)
    except _MENDABLE as error:
        trouble = _mendable(error)
        print(json.dumps({"event": "failed", "message": trouble.message, "fix": trouble.fix}), flush=True)
        return 1
    print(json.dumps({"event": "done"} | result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
