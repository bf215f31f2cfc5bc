"""What tests of pushes ask for and look at. For tests alone."""

import itertools
from pathlib import Path
from typing import Any

from tests.hub.hub_process import TOKEN, HubProcess
from tests.service.api import Caller

CONFIG = b'{"peft_type": "LORA", "r": 8}'
_numbers = itertools.count(1)


def new_name() -> str:
    """A repository that nobody has."""
    return f"org/pushed-{next(_numbers)}"


def ask(caller: Caller, adapter_id: str, repository: str, **more: Any) -> Any:
    """The response."""
    said = {"adapter_id": adapter_id, "repository": repository, "token": TOKEN} | more
    return caller.post("/v1/hub-pushes", json={name: value for name, value in said.items() if value is not None})


def asked(caller: Caller, adapter_id: str, repository: str, **more: Any) -> dict[str, Any]:
    answer = ask(caller, adapter_id, repository, **more)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def seen(caller: Caller, push: dict[str, Any]) -> dict[str, Any]:
    answer = caller.get(f"/v1/hub-pushes/{push['id']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tree(hub: HubProcess, name: str, branch: str = "main") -> dict[str, Any]:
    """Oid, size and kind of each file of the branch."""
    held = hub.held(name)
    found: dict[str, Any] = held["trees"][held["commits"][branch]]
    return found


def content(hub: HubProcess, name: str, path: str, branch: str = "main") -> bytes:
    one = tree(hub, name, branch)[path]
    return Path(hub.folder / ("lfs" if one["lfs"] else "blobs") / one["oid"]).read_bytes()


def history(hub: HubProcess, name: str, branch: str = "main") -> list[str]:
    """Titles of the branch's commits, newest first."""
    held, found = hub.held(name), list[str]()
    at = held["commits"][branch]
    while at is not None:
        found.append(held["log"][at]["title"])
        at = held["log"][at]["parent"]
    return found


def requests(hub: HubProcess, since: int, words: str) -> list[str]:
    """Method and path of the requests since then whose path has these words."""
    return [f"{line[3]} {line[0]}" for line in hub.requests[since:] if words in line[0]]
