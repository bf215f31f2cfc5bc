"""`tracking_servers` of the client and `motet trackers`: added, listed, tried again, deleted, against a scripted server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from motet import Client
from motet.cli import app
from typer.testing import CliRunner

from tests.client.scripted_server import MOMENT, Answer, Script, body

Served = Callable[[Script], Client]
SERVER: dict[str, Any] = {
    "id": "tracker_1",
    "type": "wandb",
    "name": "lab",
    "url": "https://api.wandb.ai",
    "has_credentials": True,
    "created_at": MOMENT,
}
MIRROR: dict[str, Any] = {"type": "wandb", "server": "lab", "experiment": "voices", "state": "active", "points": 3}


def page(*entries: dict[str, Any]) -> Answer:
    return 200, {}, body(object="list", data=list(entries), next_cursor=None)


def answer(code: int = 200) -> Answer:
    return code, {}, body(**SERVER)


def test_the_calls(served: Served) -> None:
    script = Script(answer(201), answer(), answer(), (204, {}, b""), page(MIRROR))
    client = served(script)
    made = client.tracking_servers.create("lab", "wandb", credentials={"api_key": "k"})
    assert json.loads(script.bodies[0]) == {"type": "wandb", "name": "lab", "credentials": {"api_key": "k"}}
    assert client.tracking_servers.get(made.id).url == "https://api.wandb.ai"
    client.tracking_servers.change(made.id, credentials={"api_key": "l"})
    assert json.loads(script.bodies[2]) == {"credentials": {"api_key": "l"}}
    client.tracking_servers.delete(made.id)
    (mirror,) = client.tasks.mirrors("task_1")
    assert (mirror.points, mirror.error, mirror.entity) == (3, None, None)
    assert script.asked[2:] == [
        "PATCH /v1/tracking-servers/tracker_1",
        "DELETE /v1/tracking-servers/tracker_1",
        "GET /v1/tasks/task_1/mirrors",
    ]


def test_the_commands(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(script: Script, *words: str, typed: str = "", code: int = 0) -> str:
        monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
        monkeypatch.setenv("MOTET_API_KEY", "mk_1")
        ran = CliRunner().invoke(app, ["trackers", *words], input=typed)
        assert (ran.exit_code != 0) == (code != 0), ran.output
        return ran.output

    assert "motet trackers add" in run(Script(page()))
    assert "api.wandb.ai" in run(Script(page(SERVER)))
    for words, typed, credentials in (
        (("--type", "wandb"), "key\n", {"api_key": "key"}),
        (("--url", "https://m", "--token"), "t\n", {"token": "t"}),
        (("--url", "https://m", "--username", "u"), "p\n", {"username": "u", "password": "p"}),
        (("--url", "https://m"), "", None),
    ):
        added = Script(answer(201))
        said = run(added, "add", "lab", *words, typed=typed)
        assert "lab is https://api.wandb.ai (wandb)" in said
        assert json.loads(added.bodies[0]).get("credentials") == credentials
    tried = Script(page(SERVER), answer())
    assert "the mirrors on lab are tried again" in run(tried, "retry", "lab")
    assert json.loads(tried.bodies[-1]) == {}
    gone = Script(page(SERVER), (204, {}, b""))
    assert "lab is deleted" in run(gone, "delete", "tracker_1")
    assert gone.asked[-1] == "DELETE /v1/tracking-servers/tracker_1"
    run(Script(page(SERVER)), "delete", "another", code=1)
