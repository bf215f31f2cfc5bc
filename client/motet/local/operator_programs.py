"""An operator's work on the deployment of this environment, or the stack of this machine: `python -m deploy.operator_commands`.

It needs the database owner's credentials, which no key of the API stands for, so no service is asked. Knows no terminal.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from motet.api import credentials
from motet.api.errors import MotetError, NoCredentials
from motet.commands import invocation

_ELSEWHERE = (
    "run it where the variables of `python -m service migrate` are (MOTET_OWNER_DATABASE_URL, MOTET_DATABASE_URL, ...):\n"
    "  docker compose:  docker compose run --rm -e MOTET_BACKUP_URL=URL migrate python -m service {word}\n"
    "  Kubernetes:      kubectl create job --from=cronjob/RELEASE-backup backup-now   (the chart's backup.url)\n"
    "  docs/OPERATIONS.md, Backup and restore, has the rest"
)
_WORDS = {"verify": "verify-backup", "rotate-key": "reseal"}  # of `python -m service`


def address_of(place: str) -> str:
    """The URL of where backups lie, or objects; a folder may be named by its path."""
    return place if "://" in place else f"file://{Path(place).expanduser().absolute()}"


def operate(word: str, url: str | None = None, name: str | None = None) -> dict[str, Any]:
    """Run one of its commands to its end; the result. Raises MotetError, which says why
    not and what to do, also where the service in use is not the stack of this machine."""
    if find_spec("deploy") is None:
        raise MotetError(f"this is the client alone, and no key of the API may {word}\n{_elsewhere(word)}")
    _refuse_another_service(word)
    command = [sys.executable, "-P", "-m", "deploy.operator_commands", word]
    command += [*([url] if url is not None else []), *(["--name", name] if name is not None else [])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not events:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise MotetError(f"{word} ended with code {done.returncode}: {last[0]}")
    result: dict[str, Any] = events[-1]
    if result.pop("event") == "failed":
        raise MotetError(f"{result['message']}\n  way out: {result['fix']}")
    return result


def _refuse_another_service(word: str) -> None:
    """Whoever talks to a service elsewhere would not expect that the stack of this machine is meant."""
    if os.environ.get("MOTET_DATABASE_URL"):
        return
    used, here = _address(), _address(service="local")
    if used is not None and used != here:
        raise MotetError(
            f"motet talks to {used}, and no key of the API may {word}; {_elsewhere(word)}\n"
            f"  or `{invocation.command()} --service local admin {word}` for the stack of this machine"
        )


def _address(service: str | None = None) -> str | None:
    try:
        return credentials.find(service=service).api_url
    except NoCredentials:
        return None


def _elsewhere(word: str) -> str:
    return _ELSEWHERE.format(word=_WORDS.get(word, word))
