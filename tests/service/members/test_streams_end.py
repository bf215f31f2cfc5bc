"""An event stream ends when its caller loses rights: by a notice at once, by a deleted row alone after a silence."""

import re
import threading
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import delete, update

from service.authentication import SESSION_COOKIE
from service.batches import merged_events
from service.tasks.polling import event_stream
from service.tenants.api_keys import hash_of
from service.tenants.member_roles import Role
from service.tenants.models import ApiKey, BrowserSession, Membership
from tests.service.live_server import PATIENCE, until


class Stream:
    """An open event stream, read by a thread."""

    def __init__(self, url: str, **how: object) -> None:
        self.text = ""
        self._client = httpx.Client(timeout=httpx.Timeout(PATIENCE, read=None), **how)  # it may be silent
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()
        until(lambda: "status" in self.text)

    def _read(self, url: str) -> None:
        with self._client.stream("GET", url) as answer:
            assert answer.status_code == 200
            for text in answer.iter_text():
                self.text += text

    def ended(self, seconds: float = PATIENCE) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@pytest.fixture
def owner(new_member):
    return new_member(Role.OWNER)


@pytest.fixture(params=["task", "batch"])
def path(request, owner, small_model) -> str:
    """A stream of a task that waits, or of a batch of one such."""
    if request.param == "task":
        return f"/v1/tasks/{owner.task()['id']}/events"
    made = owner.post("/v1/batches", json={"tasks": [owner.spec(owner.file())]})
    assert made.status_code == 201, made.text
    return f"/v1/batches/{made.json()['id']}/events"


@pytest.fixture
def editor(new_member, owner):
    return new_member(Role.EDITOR, of=owner)


@pytest.fixture
def session_of(server):
    """The cookies of a new browser session that stands for the caller's key."""

    def sign_in(caller) -> dict[str, str]:
        answer = httpx.post(f"{server.url}/sign-in", data={"key": caller.key}, headers={"Origin": server.url}, timeout=PATIENCE)
        assert answer.status_code == 303, answer.text
        return {SESSION_COOKIE: answer.cookies[SESSION_COOKIE]}

    return sign_in


@pytest.fixture
def others(server, owner, path, session_of) -> Iterator[list[Stream]]:
    """Streams of somebody who keeps their rights: they go on, and end with the tasks."""
    streams = [Stream(server.url + path, headers=owner.headers), Stream(server.url + path, cookies=session_of(owner))]
    yield streams
    assert not any(stream.ended(0.5) for stream in streams)
    for task in owner.get("/v1/tasks").json()["data"]:
        owner.post(f"/v1/tasks/{task['id']}/cancel")
    assert all(stream.ended() for stream in streams)


def lower(owner, editor) -> None:
    user = editor.get("/v1/me").json()["user_id"]
    assert owner.patch(f"/v1/members/{user}", json={"role": "viewer"}).status_code == 200


def remove(owner, editor) -> None:
    assert owner.delete(f"/v1/members/{editor.get('/v1/me').json()['user_id']}").status_code == 200


def revoke(owner, editor) -> None:
    assert owner.delete(f"/v1/keys/{editor.get('/v1/me').json()['key_id']}").status_code == 200


@pytest.mark.parametrize("lose", [lower, remove, revoke])
def test_a_loss_of_rights_ends_streams_at_once(server, path, owner, editor, others, session_of, monkeypatch, lose):
    for module in (event_stream, merged_events):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 600.0)  # longer than this test takes
    streams = [Stream(server.url + path, headers=editor.headers), Stream(server.url + path, cookies=session_of(editor))]
    lose(owner, editor)
    assert all(stream.ended() for stream in streams)
    assert ": still here" not in "".join(stream.text for stream in streams), "no silence had to pass"
    again = httpx.get(server.url + path.removesuffix("/events"), headers=editor.headers, timeout=PATIENCE)
    assert again.status_code == (200 if lose is lower else 401)


def test_signing_out_elsewhere_ends_the_sessions_streams_alone(server, path, owner, others, session_of):
    cookies = session_of(owner)
    stream, by_key = Stream(server.url + path, cookies=cookies), others[0]
    page = httpx.get(f"{server.url}/tasks", cookies=cookies, timeout=PATIENCE).text
    csrf = re.search(r'name="csrf" content="(\w+)"', page)[1]
    left = httpx.post(
        f"{server.url}/sign-out", data={"csrf": csrf}, cookies=cookies, headers={"Origin": server.url}, timeout=PATIENCE
    )
    assert left.headers["location"] == "/sign-in"
    assert stream.ended()
    assert not by_key.ended(0)


@pytest.mark.parametrize("row", ["session", "key", "member"])
def test_a_row_changed_without_a_notice_ends_the_stream_after_a_silence(
    server, path, owner, editor, session_of, database, monkeypatch, row
):
    for module in (event_stream, merged_events):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    cookies, user = session_of(editor), editor.get("/v1/me").json()["user_id"]
    stream, other = Stream(server.url + path, cookies=cookies), Stream(server.url + path, headers=owner.headers)
    changes = {
        "session": delete(BrowserSession).where(BrowserSession.hash == hash_of(cookies[SESSION_COOKIE])),
        "key": delete(ApiKey).where(ApiKey.hash == hash_of(editor.key)),
        "member": update(Membership).where(Membership.user_id == user).values(role="viewer"),
    }
    with database.begin() as session:
        if row == "key":
            session.execute(delete(BrowserSession).where(BrowserSession.hash == hash_of(cookies[SESSION_COOKIE])))
        session.execute(changes[row])
    assert stream.ended()
    assert not other.ended(0)
    assert "still here" in stream.text
