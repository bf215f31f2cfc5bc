"""Asking: the calls of both clients and `motet ask`, against a socket that answers from a script."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from motet import ApiError, AsyncClient, Client, Unreachable
from motet.cli import main
from motet.commands.exit_codes import ExitCode

from tests.client.scripted_server import ADAPTER, MOMENT, TASK, Answer, Script, body

Served = Callable[[Script], Client]

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
CONFIG = {"learning_rate": 1e-3, "rank": 8, "alpha": 16, "batch_size": 4, "seed": 0}
WINNER = {"job_id": "job_1", "index": 0, "config": CONFIG, "adapter_id": "adapter_1", "val_loss": 1.0, "step": 3}
REFUSED: Answer = (
    503,
    {"retry-after": "10"},
    body(error={"message": "No executor runs base b.", "type": "server_error", "param": None, "code": "no_executor"}),
)


def chat(text: str, reason: str = "stop") -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason, "logprobs": None}
    return 200, {}, body(id="x", object="chat.completion", model="adapter_1", choices=[choice], usage=USAGE)


def chunk(reason: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None}


def events(*data: dict[str, Any], done: bool = True) -> Answer:
    frames = [json.dumps(one) for one in data] + (["[DONE]"] if done else [])
    return 200, {"content-type": "text/event-stream"}, "".join(f"data: {one}\n\n" for one in frames).encode()


def streamed(*texts: str, reason: str = "stop") -> Answer:
    parts = [chunk(role="assistant", content=""), *(chunk(content=text) for text in texts), chunk(reason)]
    return events(*parts, {"choices": [], "usage": USAGE})


def test_a_whole_answer_of_a_conversation_and_of_a_plain_text(served: Served) -> None:
    plain: Answer = (200, {}, body(model="b", choices=[{"text": "two", "finish_reason": "length"}], usage=USAGE))
    script = Script(chat("four"), plain)
    client = served(script)
    said = client.completions.create("adapter_1", "2 + 2?", max_tokens=3, temperature=0, stop=["."])
    assert (said.text, said.finish_reason, said.usage.completion_tokens) == ("four", "stop", 2)
    messages = [{"role": "user", "content": "2 + 2?"}]
    assert json.loads(script.bodies[0]) == {
        "model": "adapter_1",
        "messages": messages,
        "max_tokens": 3,
        "temperature": 0,
        "stop": ["."],
    }
    assert client.completions.create("b", "one ", plain=True).text == "two"
    assert json.loads(script.bodies[1]) == {"model": "b", "prompt": "one "}
    assert script.asked == ["POST /openai/v1/chat/completions", "POST /openai/v1/completions"]


def test_both_clients_stream_the_parts_and_the_usage(served: Served) -> None:
    script = Script(streamed("fo", "ur"))
    client = served(script)
    parts = list(client.completions.stream("adapter_1", [{"role": "system", "content": "Count."}]))
    assert [part.text for part in parts] == ["fo", "ur", "", ""]
    assert [part.finish_reason for part in parts] == [None, None, "stop", None]
    assert parts[-1].usage is not None
    assert json.loads(script.bodies[0])["messages"] == [{"role": "system", "content": "Count."}]
    assert json.loads(script.bodies[0])["stream"] is True

    async def go() -> str:
        async with AsyncClient(client.api_url, "mk_1") as beside:
            return "".join([part.text async for part in beside.completions.stream("adapter_1", "2 + 2?")])

    assert asyncio.run(go()) == "four"


def test_a_refusal_is_openais_error_and_is_not_sent_again(served: Served) -> None:
    for ask in (lambda client: client.completions.create("b", "x"), lambda client: list(client.completions.stream("b", "x"))):
        script = Script(REFUSED, chat("late"))
        with pytest.raises(ApiError, match=r"No executor runs base b\.") as caught:
            ask(served(script))
        assert (caught.value.status, caught.value.code, len(script.asked)) == (503, "no_executor", 1)


def test_a_wrong_field_is_named(served: Served) -> None:
    wrong = {"message": "max_tokens: is 9999", "type": "invalid_request_error", "param": "max_tokens", "code": "too_large"}
    with pytest.raises(ApiError) as caught:
        served(Script((400, {}, body(error=wrong)))).completions.create("b", "x", max_tokens=9999)
    assert [error.field for error in caught.value.errors] == ["max_tokens"]


def test_a_stream_that_ends_in_the_middle_is_no_answer(served: Served) -> None:
    lost = {"error": {"message": "The executor ended.", "code": "completion_lost", "param": None}}
    for broken, error in (
        (events(chunk(content="fo"), lost), ApiError),
        (events(chunk(content="fo"), done=False), Unreachable),
    ):
        parts = served(Script(broken)).completions.stream("b", "x")
        assert next(parts).text == "fo"
        with pytest.raises(error):
            next(parts)


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        ("authentication_error", "key_refused", 401),
        ("invalid_request_error", "not_finite", 400),
        ("server_error", "completion_lost", 503),
        (None, "completion_lost", 503),
    ],
)
def test_an_error_in_a_stream_has_the_status_of_its_kind(served: Served, kind: str | None, code: str, status: int) -> None:
    said = {"error": {"message": "It ended.", "type": kind, "code": code, "param": None}}
    with pytest.raises(ApiError) as caught:
        list(served(Script(events(chunk(content="fo"), said))).completions.stream("b", "x"))
    assert (caught.value.status, caught.value.code) == (status, code)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def motet(served: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command line against this script: its exit code."""

    def run(script: Script, *words: str, stdin: str = "") -> int:
        monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
        monkeypatch.setenv("MOTET_API_KEY", "mk_1")
        monkeypatch.setattr("sys.argv", ["motet", *words])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def test_a_tasks_winner_is_asked_and_its_answer_streams(motet, capsys) -> None:
    selection = {"beats_base": False, "verdict": "nothing beat the base"}
    script = Script((200, {}, body(**TASK | {"winner": WINNER, "selection": selection})), streamed("fo", "ur", reason="length"))
    asked = ("--max-tokens", "3", "--temperature", "0", "--seed", "7", "--stop", "a", "--stop", "b")
    assert motet(script, "ask", "task_1", "-", *asked, stdin="2 + 2?\n") == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out == "four\n"
    assert "nothing beat the base" in said.err
    assert "cut at the most tokens" in said.err
    sent = json.loads(script.bodies[-1])
    assert (sent["model"], sent["messages"][0]["content"]) == ("adapter_1", "2 + 2?")
    assert (sent["max_tokens"], sent["temperature"], sent["seed"], sent["stop"]) == (3, 0.0, 7, ["a", "b"])


FILE = {"id": "file_1", "name": "n", "bytes": 1, "rows": 1, "sha256": "0" * 64, "created_at": MOMENT}
STREAMS = {
    "completions": events({"choices": [{"text": "four", "finish_reason": "stop"}], "usage": None}),
    "chat/completions": streamed("four"),
}
TRAINED = TASK | {"winner": WINNER, "spec": {"dataset": {"file_id": "file_1"}}}


@pytest.mark.parametrize(
    ("format", "path"), [("completion", "completions"), ("text", "completions"), ("chat", "chat/completions")]
)
@pytest.mark.parametrize("asked", ["task_1", "adapter_1"])
def test_the_prompt_stands_as_the_tasks_rows_do(motet, capsys, asked, format, path) -> None:
    known = [(200, {}, body(**ADAPTER))] * (asked == "adapter_1")
    script = Script(*known, (200, {}, body(**TRAINED)), (200, {}, body(**FILE | {"format": format})), STREAMS[path])
    motet(script, "ask", asked, "2 + 2?")
    assert script.asked[-1] == f"POST /openai/v1/{path}"
    said = capsys.readouterr().err
    assert ("--chat applies the chat template" in said) is (path == "completions")
    assert ("--plain asks as they stand" in said) is (format == "preference")


def test_the_user_may_say_how_the_prompt_stands(motet, capsys) -> None:
    task: Answer = (200, {}, body(**TRAINED))
    for option, path in (("--chat", "chat/completions"), ("--plain", "completions")):
        script = Script(task, STREAMS[path])
        motet(script, "ask", "task_1", "2 + 2?", option)
        assert script.asked == ["GET /v1/tasks/task_1", f"POST /openai/v1/{path}"]
    assert "the task's rows" not in capsys.readouterr().err


def test_of_a_file_that_is_gone_the_chat_template_stays(motet) -> None:
    gone: Answer = (404, {}, body(code="not_found", title="gone", detail="There is no file."))
    script = Script((200, {}, body(**TRAINED)), gone, streamed("four"))
    assert motet(script, "ask", "task_1", "2 + 2?") == ExitCode.DONE
    assert script.asked[-1] == "POST /openai/v1/chat/completions"


def test_whole_answers_as_text_and_as_json(motet, capsys) -> None:
    assert motet(Script(chat("four")), "ask", "b", "2 + 2?", "--no-stream") == ExitCode.DONE
    assert capsys.readouterr().out == "four\n"
    script = Script(chat("four"))
    assert motet(script, "ask", "b", "2 + 2?", "--json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == {
        "model": "adapter_1",
        "text": "four",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    assert "stream" not in json.loads(script.bodies[0])


def test_exit_codes_of_asking(motet, capsys) -> None:
    assert motet(Script((200, {}, body(**TASK))), "ask", "task_1", "x") == ExitCode.FAILED
    assert "task_1 has no winner yet: it is running" in capsys.readouterr().err
    assert motet(Script(REFUSED), "ask", "b", "x") == ExitCode.FAILED
    assert "No executor runs base b." in capsys.readouterr().err
    assert motet(Script(REFUSED), "ask", "b", "x", "--json") == ExitCode.FAILED
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "no_executor"
    script = Script(REFUSED)
    assert motet(script, "ask", "b", "-", stdin="\n") == ExitCode.USAGE
    assert motet(script, "ask", "b", "x", "--temperature", "3") == ExitCode.USAGE
    assert script.asked == []
    assert motet(Script((401, {}, body(error={"message": "no key", "code": "unauthorized"}))), "ask", "b", "x") == 3


def test_a_terminal_is_not_driven_by_an_answer(motet, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = "Où\u202f? 東京\u3000駅 👩\u200d💻\r\n"  # spaces and joiners, which people write
    assert motet(Script(streamed(f"a\x1b[2J\x9b2J{words}")), "ask", "b", "x") == ExitCode.DONE
    assert capsys.readouterr().out == f"a\ufffd[2J\ufffd2J{words}\n"
