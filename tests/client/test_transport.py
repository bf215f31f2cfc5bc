"""The client against a real socket that misbehaves on purpose: restarts, half answers, answers of a proxy in between."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from motet import ApiError, Client, Unreachable
from motet.api.errors import DownloadDamaged
from motet.api.operations import adapters

from tests.client.scripted_server import ADAPTER, FILE, PAGE, TASK, Answer, Script, body


def test_a_read_outlasts_a_restart(served: Callable[[Script], Client]) -> None:
    script = Script(None, (503, {}, body(detail="starting")), PAGE)
    assert list(served(script).files.list()) == []
    assert len(script.asked) == 3


def test_a_change_that_makes_nothing_is_sent_once(served: Callable[[Script], Client]) -> None:
    script = Script(None, PAGE)
    with pytest.raises(Unreachable, match="does not answer"):
        served(script).tasks.pause("task_1")
    assert (script.asked, script.keys) == (["POST /v1/tasks/task_1/pause"], [None])


IN_HAND: Answer = (409, {"retry-after": "1"}, body(code="idempotency_in_flight", detail="not yet"))


def test_what_makes_something_is_sent_again_under_its_key(served: Callable[[Script], Client], tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"prompt": "a", "completion": "b"}\n')
    script = Script(None, (503, {}, body(detail="starting")), IN_HAND, (201, {}, body(**FILE)))
    client = served(script)
    assert client.files.upload(rows).id == "file_1"
    assert len(set(script.keys)) == 1
    assert len(script.asked) == 4
    assert all(rows.read_bytes() in sent for sent in script.bodies), "the file is sent from its beginning each time"
    client.files.upload(rows)
    assert len(set(script.keys)) == 2, "another upload has another key"


def test_a_refusal_is_not_tried_again(served: Callable[[Script], Client]) -> None:
    for status, code in ((409, "name_taken"), (422, "idempotency_key_reused"), (500, "internal")):
        script = Script((status, {}, body(code=code, detail="no")), PAGE)
        with pytest.raises(ApiError, match="no"):
            served(script).tasks.create({"base_model": "b"})
        assert len(script.asked) == 1


def limited(seconds: str) -> Answer:
    return (429, {"retry-after": seconds}, body(code="rate_limit_exceeded", detail="The limit is 3 a minute."))


def test_what_was_refused_for_now_is_sent_again_when_the_service_says(served, monkeypatch, caplog) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    done = (200, {}, body(**TASK))
    script = Script(limited("2"), limited("30"), done, limited("0"), done, limited("5"), limited("56"))
    client = served(script)
    assert client.tasks.pause("task_1").id == client.tasks.get("task_1").id == "task_1"
    assert waits == [2, 30, 1]
    assert caplog.messages[0] == "waiting up to 60 s, since the service asks to: The limit is 3 a minute."
    with pytest.raises(ApiError, match="3 a minute"):
        client.tasks.pause("task_1")
    assert waits[3:] == [5], "the second wait would end beyond the minute"


def test_a_task_without_an_etag_is_not_polled_without_a_pause(served, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    script = Script(*[(200, {}, body(**TASK))] * 3, (200, {}, body(**TASK | {"status": "succeeded"})))
    assert served(script).tasks.wait("task_1").status == "succeeded"
    assert waits == [1.0] * 3


def test_a_stream_that_is_refused_for_now_is_opened_when_the_service_says(served, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    chunk = body(choices=[{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}], usage=None)
    said = (200, {}, b"data: " + chunk + b"\n\ndata: [DONE]\n\n")
    assert [part.text for part in served(Script(limited("7"), said)).completions.stream("b", "Well?")] == ["yes"]
    assert waits == [7]


@pytest.mark.parametrize("asked", ["61", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", ""])
def test_a_wait_that_is_too_long_or_unclear_is_the_callers(served, asked: str) -> None:
    script = Script(limited(asked))
    with pytest.raises(ApiError, match="3 a minute"):
        served(script).tasks.pause("task_1")
    assert len(script.asked) == 1


def test_a_problem_is_readable(served: Callable[[Script], Client]) -> None:
    errors = [
        {"field": "search_space.rank[0]", "code": "greater_than_equal", "message": "should be at least 1"},
        {"line": 3, "field": "messages[1].role", "code": "wrong_role", "message": "must be user or assistant"},
    ]
    problem = body(title="The request is not valid", detail="rank", code="invalid", errors=errors, request_id="req_1", seen=2)
    with pytest.raises(ApiError) as caught:
        served(Script((422, {}, problem))).tasks.create({})
    error = caught.value
    assert (error.status, error.code, error.request_id, error.problem["seen"]) == (422, "invalid", "req_1", 2)
    assert error.errors[0].field == "search_space.rank[0]"
    assert str(error) == (
        "The request is not valid: search_space.rank[0]: should be at least 1; "
        "line 3, messages[1].role: must be user or assistant"
    )


@pytest.mark.parametrize("content", [b"<html>Bad gateway</html>", b'"text"', b"[1]", b""])
def test_an_answer_that_is_not_motets_is_told_as_that(served: Callable[[Script], Client], content: bytes) -> None:
    with pytest.raises(ApiError, match="answered 500"):
        served(Script((500, {}, content))).tasks.get("task_1")


def test_pages_are_followed(served: Callable[[Script], Client]) -> None:
    first = (200, {}, body(data=[FILE], next_cursor="here"))
    second = (200, {}, body(data=[FILE | {"id": "file_2", "from_a_newer_service": 1}], next_cursor=None))
    script = Script(first, second)
    assert [one.id for one in served(script).files.list()] == ["file_1", "file_2"]
    assert script.asked == ["GET /v1/files", "GET /v1/files?cursor=here"]


def test_a_damaged_download_leaves_nothing(served: Callable[[Script], Client], tmp_path) -> None:
    client = served(Script((200, {}, body(**ADAPTER)), (200, {}, b"x")))
    with pytest.raises(DownloadDamaged, match=r"adapter_config\.json of adapter_1 arrived damaged"):
        client.adapters.download("adapter_1", tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_download_goes_on_where_it_broke_off(served: Callable[[Script], Client], tmp_path) -> None:
    config, weights = b"0123456789", b"abcdefghij"
    files = [
        {"path": path, "sha256": sha256(content).hexdigest(), "bytes": len(content)}
        for path, content in (("adapter_config.json", config), ("adapter_model.safetensors", weights))
    ]
    script = Script(
        (200, {}, body(**ADAPTER | {"files": files})),
        (200, {"content-length": "10"}, config[:4]),
        None,
        (206, {"content-length": "6"}, config[4:7]),
        (206, {}, config[7:]),
        (200, {"content-length": "10"}, weights[:4]),
        (200, {}, weights),  # of a server that knows no ranges
        (404, {}, body(detail="no README yet")),
    )
    folder = served(script).adapters.download("adapter_1", tmp_path / "mine")
    assert [(folder / file["path"]).read_bytes() for file in files] == [config, weights]
    assert [asked.get("range") for asked in script.headers] == [
        None,
        None,
        *["bytes=4-"] * 2,
        "bytes=7-",
        None,
        "bytes=4-",
        None,
    ]


@pytest.mark.parametrize("name", [".", "link", "mine"])
def test_a_download_fills_an_empty_folder_that_no_rename_replaces(
    served: Callable[[Script], Client], tmp_path, monkeypatch, name
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / "link").symlink_to(mine)
    monkeypatch.chdir(mine if name == "." else tmp_path)
    found = {"path": "adapter_config.json", "sha256": sha256(b"{}").hexdigest(), "bytes": 2}
    damaged = Script((200, {}, body(**ADAPTER | {"files": [found]})), (200, {}, b"x"))
    with pytest.raises(DownloadDamaged):
        served(damaged).adapters.download("adapter_1", name)
    assert list(mine.iterdir()) == []
    whole = Script((200, {}, body(**ADAPTER | {"files": [found]})), (200, {}, b"{}"), (404, {}, body(detail="no README yet")))
    served(whole).adapters.download("adapter_1", name)
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == {"adapter_config.json": b"{}"}
    assert served(Script((200, {}, body(**ADAPTER | {"files": [found]})))).adapters.download("adapter_1", name), "it is there"


def test_a_download_from_a_service_that_stays_away_ends(served: Callable[[Script], Client], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(adapters, "PAUSES", (0.01, 0.01))
    script = Script((200, {}, body(**ADAPTER)), None)
    with pytest.raises(Unreachable):
        served(script).adapters.download("adapter_1", tmp_path / "mine")
    assert len(script.asked) == 4
    assert list(tmp_path.iterdir()) == []


def test_parameters_that_the_service_ignored_are_told_once(served, caplog) -> None:
    script = Script((200, {"motet-ignored-parameters": "a-new-one"}, PAGE[2]))
    client = served(script)
    for _ in range(2):
        assert list(client.files.list()) == []
    assert [record.levelname for record in caplog.records if "ignored" in record.message and "a-new-one" in record.message] == [
        "WARNING"
    ]
