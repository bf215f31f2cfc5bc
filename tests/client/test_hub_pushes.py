"""`hub_pushes` of the client and `motet push`: asked for, waited for, told, against a scripted server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from motet import Client
from motet.api.errors import HubPushFailed
from motet.cli import app
from typer.testing import CliRunner

from tests.client.scripted_server import MOMENT, Answer, Script, body

Served = Callable[[Script], Client]
PUSH: dict[str, Any] = {
    "id": "push_1",
    "adapter_id": "adapter_1",
    "merged_model_id": None,
    "repository": "org/name",
    "revision": "main",
    "private": True,
    "url": "https://hub.example/org/name/tree/main",
    "message": "Upload adapter_1",
    "status": "queued",
    "files": [],
    "bytes": 1400,
    "sent_bytes": 0,
    "attempts": 0,
    "created_at": MOMENT,
}


def answer(status: str = "queued", code: int = 200, **changes: Any) -> Answer:
    return code, {}, body(**PUSH | changes | {"status": status})


ASKED = answer(code=201)
THERE = answer("succeeded", commit="c0ffee" + "0" * 34, sent_bytes=1400)
FAILED = answer("failed", error={"code": "hub_forbidden", "detail": "the token needs the right to write."}, sent_bytes=700)


def test_asked_for_and_waited_for(served: Served) -> None:
    script = Script(ASKED, answer("running", sent_bytes=100), THERE)
    client = served(script)
    made = client.hub_pushes.create("adapter_1", "org/name", "hf_x", private=False, base_model="org/base")
    said = {"adapter_id": "adapter_1", "repository": "org/name", "token": "hf_x", "private": False, "base_model": "org/base"}
    assert json.loads(script.bodies[0]) == said
    assert (client.hub_pushes.wait(made.id).commit or "").startswith("c0ffee")
    merged = Script(ASKED)
    served(merged).hub_pushes.create("merged_1", "org/name", "hf_x", revision="v2", message="again")
    assert json.loads(merged.bodies[0]) == {
        "merged_model_id": "merged_1",
        "repository": "org/name",
        "token": "hf_x",
        "revision": "v2",
        "message": "again",
    }


def test_what_fails_and_what_takes_long(served: Served) -> None:
    with pytest.raises(HubPushFailed, match=r"push_1 could not be pushed: the token needs the right to write\."):
        served(Script(FAILED)).hub_pushes.wait("push_1")
    with pytest.raises(HubPushFailed, match="push_1 is running after 0 s, 100 bytes so far"):
        served(Script(answer("running", sent_bytes=100))).hub_pushes.wait("push_1", timeout=0)


def test_the_commands(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(script: Script, *words: str, code: int = 0) -> str:
        monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
        monkeypatch.setenv("MOTET_API_KEY", "mk_1")
        ran = CliRunner().invoke(app, list(words))
        assert ran.exit_code == code, ran.output
        return ran.output + (str(ran.exception) if code else "")

    push = ("push", "adapter_1", "org/name")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    pushing = Script(ASKED, THERE)
    assert "https://hub.example/org/name/tree/main has it, as of commit c0ffee" in run(pushing, *push)
    assert json.loads(pushing.bodies[0])["token"] == "hf_of_the_environment"
    assert "private" not in json.loads(pushing.bodies[0])
    token = tmp_path / "token"
    token.write_text("hf_of_the_file\n")
    public = Script(ASKED)
    words = ("--public", "--no-wait", "--json", "--token-file", str(token), "--revision", "v2", "-m", "again")
    assert json.loads(run(public, *push, *words))["status"] == "queued"
    said = json.loads(public.bodies[0])
    assert (said["token"], said["private"], said["revision"], said["message"]) == ("hf_of_the_file", False, "v2", "again")
    failed = run(Script(ASKED, FAILED), *push, code=1)
    assert "700 of 1,400 bytes; the token needs the right to write." in failed
    page = (200, {}, body(object="list", data=[PUSH], next_cursor=None))
    assert "push_1" in run(Script(page), "pushes")
    deleted = Script((204, {}, b""))
    assert "push_1 is deleted" in run(deleted, "delete", "push_1")
    assert deleted.asked == ["DELETE /v1/hub-pushes/push_1"]


def test_no_token_is_asked_for_where_nobody_can_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    ran = CliRunner().invoke(app, ["push", "adapter_1", "org/name"])
    assert "set the variable HF_TOKEN, or name a file by --token-file" in str(ran.exception)
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for file, words in ((empty, "holds no token"), (tmp_path / "none", "cannot be read")):
        ran = CliRunner().invoke(app, ["push", "adapter_1", "org/name", "--token-file", str(file)])
        assert words in str(ran.exception)
