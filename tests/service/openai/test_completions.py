"""Completions through the unmodified SDK, a scripted executor behind the real service: objects, streams, limits, losses."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest
from motet import ApiError, Client
from motet.api.resources import TokenCounts
from openai import OpenAI
from sqlalchemy import func, select, update

from service.background.retention import Retention, forget
from service.completions import executor_claims, following
from service.completions.models import CompletionPieces, CompletionRequest
from service.tasks.models import Job
from service.tenants.models import Tenant
from service.usage.models import CompletionUsage
from tests.service.fleet.scripted import ScriptedNode, ScriptedPlacement, completed, moved, points
from tests.service.live_server import Server, until

USER = [{"role": "user", "content": "How many?"}]


@dataclass
class Executor:
    """What an executor does for completions, under one placement."""

    placement: ScriptedPlacement
    name: str = "executor-1"

    def wants(self, room: int = 8, held: tuple[str, ...] = (), wait: float = 0.0) -> dict[str, Any]:
        said = {"fence": self.placement.given.fence, "executor": self.name, "room": room, "held": list(held), "wait": wait}
        answer = self.placement.call("POST", "completions", said)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def next(self) -> dict[str, Any]:
        """The next request, which must come."""
        found: list[dict[str, Any]] = []
        until(lambda: found.extend(self.wants(room=1)["requests"]) or found)
        return found[0]

    def sends(self, *pieces: dict[str, Any]) -> list[str]:
        said = {"fence": self.placement.given.fence, "executor": self.name, "pieces": list(pieces)}
        answer = self.placement.call("POST", "completion-pieces", said)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["gone"])


def piece(work: dict[str, Any], number: int, *choices: dict[str, Any], over: bool = False, **more: Any) -> dict[str, Any]:
    said = {"prompt_tokens": 5, "completion_tokens": 2 * number, "seconds": 0.25}
    return {"request_id": work["request_id"], "number": number, "choices": list(choices), "over": over, **said, **more}


def text(said: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": said, **more}


@pytest.fixture
def training(tenant, new_node, plan) -> Callable[..., ScriptedPlacement]:
    """A task of a tenant that runs on a node of its own."""

    def start(caller: Any = None, node: ScriptedNode | None = None, **changes: Any) -> ScriptedPlacement:
        node = node or new_node(said={"capabilities": None})
        task = (caller or tenant).task(**changes)
        plan()
        placement = node.take(task["id"])
        node.leases(placement.pulse())
        placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
        return placement

    return start


@pytest.fixture
def executor(training) -> Executor:
    return Executor(training())


@contextmanager
def asking(server: Server, key: str) -> Iterator[Callable[..., Future[Any]]]:
    """Ask in a thread: `ask("chat", model=..., ...)`."""
    with OpenAI(base_url=f"{server.url}/openai/v1", api_key=key, max_retries=0) as client, ThreadPoolExecutor(16) as threads:
        calls = {"chat": client.chat.completions.create, "text": client.completions.create}
        yield lambda kind, **said: threads.submit(lambda: calls[kind](**{"model": "small", **said}))


@pytest.fixture
def ask(server, tenant) -> Iterator[Callable[..., Future[Any]]]:
    with asking(server, tenant.key) as made:
        yield made


def adapter_of(placement: ScriptedPlacement) -> str:
    """The task's first job ends with an adapter: its id."""
    placement.report(placement.adapter(0, 1.25), completed(0))
    return placement.given.jobs[0].job_id


def refused(future: Future[Any], kind: type[openai.APIStatusError], code: str, param: str | None = None) -> Any:
    with pytest.raises(kind) as caught:
        future.result()
    assert (caught.value.code, caught.value.param) == (code, param), caught.value.message
    return caught.value


def test_a_chat_completion_has_openais_shape_and_is_billed(ask, executor, tenant, database) -> None:
    more = {"n": 2, "logprobs": True, "top_logprobs": 1, "seed": -3, "stop": ["END"], "max_completion_tokens": 9}
    answer = ask("chat", messages=[{"role": "developer", "content": "Be brief."}, *USER], temperature=0.5, top_p=0.9, **more)
    work = executor.next()
    assert [turn["role"] for turn in work["messages"]] == ["system", "user"]
    wanted = {"n": 2, "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "stop": ["END"], "seed": 2**63 - 3, "logprobs": 1}
    assert {name: work[name] for name in wanted} == wanted
    assert (work["adapter"], work["checkpoint"], work["exact_max_tokens"]) == (None, None, True)
    tokens = [{"token": "Tw", "logprob": -0.5, "top": [["Tw", -0.5]]}, {"token": "o", "logprob": -0.1, "top": [["o", -0.1]]}]
    executor.sends(piece(work, 1, text("Tw", logprobs=tokens[:1]), text("Three", 1)))
    executor.sends(piece(work, 1, text("Tw", logprobs=tokens[:1]), text("Three", 1)))  # its answer was lost: sent again
    last = piece(work, 2, text("o", logprobs=tokens[1:], finish_reason="stop"), text("!", 1, finish_reason="length"), over=True)
    executor.sends(last)
    executor.sends(last)
    said = answer.result()
    assert (said.object, said.model, said.id.startswith("chatcmpl-")) == ("chat.completion", "small", True)
    assert [(one.index, one.message.content, one.finish_reason) for one in said.choices] == [
        (0, "Two", "stop"),
        (1, "Three!", "length"),
    ]
    assert [token.token for token in said.choices[0].logprobs.content] == ["Tw", "o"]
    assert said.choices[0].logprobs.content[0].bytes == list(b"Tw")
    assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens) == (5, 4, 9)
    with database.begin() as session:
        used = session.scalars(select(CompletionUsage).where(CompletionUsage.tenant_id == tenant.tenant_id)).one()
        assert (used.requests, used.prompt_tokens, used.completion_tokens, used.gpu_seconds) == (1, 5, 4, 0.25)
        row = session.scalars(select(CompletionRequest).where(CompletionRequest.id == work["request_id"])).one()
        assert (row.state, row.work) == ("ended", {}), "the prompt is gone"
        assert session.scalar(select(func.count()).select_from(CompletionPieces)) == 0
    usage = tenant.get("/v1/usage").json()["completions"]
    assert usage == {"requests": 1, "prompt_tokens": 5, "completion_tokens": 4, "gpu_seconds": 0.25}
    assert tenant.get("/v1/quotas").json()["month_tokens"]["used"] == 9


def test_a_stream_has_the_same_text_in_chunks(ask, executor) -> None:
    chunks = ask("chat", messages=USER, stream=True, stream_options={"include_usage": True})
    work = executor.next()
    executor.sends(piece(work, 1, text("T")))
    stream = iter(chunks.result())
    first = next(stream)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert next(stream).choices[0].delta.content == "T", "it comes before the answer is over"
    executor.sends(piece(work, 2, text("wo", finish_reason="stop"), over=True))
    rest = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in rest if one.choices) == "wo"
    assert [one.choices[0].finish_reason for one in rest if one.choices][-1] == "stop"
    assert [one.usage is not None for one in rest] == [False] * (len(rest) - 1) + [True]
    assert (rest[-1].choices, rest[-1].usage.completion_tokens) == ([], 4)


def test_the_stream_is_written_as_openai_writes_it(server, tenant, executor) -> None:
    said = {"model": "small", "messages": USER, "stream": True}
    with ThreadPoolExecutor(1) as threads:
        how = {"headers": tenant.headers, "timeout": 60}
        answer = threads.submit(lambda: httpx.post(f"{server.url}/openai/v1/chat/completions", json=said, **how))
        work = executor.next()
        executor.sends(piece(work, 1, text("Two", finish_reason="stop"), over=True))
        got = answer.result()
    assert got.headers["content-type"].startswith("text/event-stream")
    events = got.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    parsed = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {one["object"] for one in parsed} == {"chat.completion.chunk"}
    assert all("usage" not in one for one in parsed)


def test_text_completions_of_several_prompts(ask, executor) -> None:
    answer = ask("text", prompt=["One", "Two"], n=2, logprobs=1, max_tokens=3)
    work = executor.next()
    assert (work["prompts"], work["n"], work["max_tokens"], work["messages"]) == (["One", "Two"], 2, 3, None)
    tokens = [{"token": "ab", "logprob": -1.0, "top": [["ab", -1.0]]}, {"token": "c", "logprob": -2.0, "top": [["x", -0.5]]}]
    done = [text("abc", at, finish_reason="length", logprobs=tokens) for at in range(4)]
    executor.sends(piece(work, 1, *done, over=True))
    said = answer.result()
    assert (said.object, [one.text for one in said.choices]) == ("text_completion", ["abc"] * 4)
    assert said.choices[3].logprobs.text_offset == [0, 2]
    assert said.choices[3].logprobs.top_logprobs[1] == {"x": -0.5}
    ids = ask("text", prompt=[1, 2, 3])
    work = executor.next()
    assert (work["prompts"], work["max_tokens"]) == ([[1, 2, 3]], 16)
    executor.sends(piece(work, 1, text("d", finish_reason="stop"), over=True))
    assert ids.result().choices[0].text == "d"


def test_models_are_asked_by_every_name_that_they_have(ask, executor, tenant, server, new_tenant, training) -> None:
    task = executor.placement.given.task_id
    job = executor.placement.given.jobs[0].job_id
    refused(ask("chat", messages=USER, model=job), openai.BadRequestError, "no_checkpoint", "model")
    executor.placement.report(points(0, [1, 2, 3]), executor.placement.checkpoint({0: 3}))
    answers = [ask("chat", messages=USER, model=job)]
    work = executor.next()
    assert (work["checkpoint"]["file"]["step"], work["adapter"]) == (3, None)
    got = executor.placement.call("GET", f"completions/{work['request_id']}/objects/{work['checkpoint']['file']['sha256']}")
    assert got.content.startswith(b"checkpoint of")
    works = [work]
    adapter_of(executor.placement)
    adapter = tenant.get(f"/v1/tasks/{task}/jobs").json()["data"][0]["adapter_id"]
    tuned = f"ft:small::{adapter}"
    for name in (adapter, tuned, job):
        answers.append(ask("chat", messages=USER, model=name))
        works.append(executor.next())
        assert {file["path"] for file in works[-1]["adapter"]} == {"adapter_config.json", "adapter_model.safetensors"}
        sha256 = works[-1]["adapter"][0]["sha256"]
        path = f"completions/{works[-1]['request_id']}/objects"
        assert executor.placement.call("GET", f"{path}/{sha256}").status_code == 200
        assert executor.placement.call("GET", f"{path}/{work['checkpoint']['file']['sha256']}").status_code == 404
    for work in works:
        executor.sends(piece(work, 1, text("yes", finish_reason="stop"), over=True))
    assert [one.result().choices[0].message.content for one in answers] == ["yes"] * 4
    with asking(server, new_tenant().key) as theirs:
        for name in (adapter, tuned, job, "ft:small::adapter_0", "nothing"):
            refused(theirs("chat", messages=USER, model=name), openai.NotFoundError, "not_found")
    refused(ask("chat", messages=USER, model=f"ft:other::{adapter}"), openai.NotFoundError, "not_found")


def test_fp8_is_refused_and_a_precision_must_be_the_adapters(ask, training, database) -> None:
    placement = training(precision="nf4")
    placement.report(points(0, [1, 2, 3]), placement.checkpoint({0: 3}))
    job = placement.given.jobs[0].job_id
    other = ask("chat", messages=USER, model=job, extra_body={"precision": "bf16"})
    refused(other, openai.BadRequestError, "precision_differs", "precision")
    four = ask("chat", messages=USER, extra_body={"precision": "nf4"})
    executor = Executor(placement)
    plain = ask("chat", messages=USER)
    work = executor.next()
    assert executor.wants()["requests"] == [], "the base in bf16 is not what this executor has"
    executor.sends(piece(work, 1, text("four", finish_reason="stop"), over=True))
    assert four.result().choices[0].message.content == "four"
    with database.begin() as session:
        task = session.get_one(Job, job).task
        task.spec = task.spec | {"precision": "fp8"}
    refused(ask("chat", messages=USER, model=job), openai.BadRequestError, "precision_unsupported", "model")
    with database.begin() as session:
        session.execute(update(CompletionRequest).values(created_at=func.now() - timedelta(minutes=5)))
    said = refused(plain, openai.InternalServerError, "no_executor")
    assert "base model small in bf16" in said.message
    assert said.response.headers["retry-after"]


@pytest.mark.parametrize(
    ("kind", "said", "param"),
    [
        ("chat", {"extra_body": {"tools": [{"type": "function"}]}}, "tools"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"frequency_penalty": 0.5}, "frequency_penalty"),
        ("chat", {"logit_bias": {"5": 1}}, "logit_bias"),
        ("chat", {"temperature": 2.5}, "temperature"),
        ("chat", {"top_p": 0.0}, "top_p"),
        ("chat", {"n": 17}, "n"),
        ("chat", {"max_tokens": 0}, "max_tokens"),
        ("chat", {"max_completion_tokens": 10**6}, "max_completion_tokens"),
        ("chat", {"stop": ["a"] * 5}, "stop"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"extra_body": {"beam_width": 3}}, "beam_width"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ("chat", {"messages": [{"role": "tool", "content": "4", "tool_call_id": "x"}]}, "messages[0].role"),
        ("text", {"prompt": [["a"]]}, "prompt"),
        ("text", {"prompt": []}, "prompt"),
        ("text", {"prompt": ["x"] * 9, "n": 2}, None),
        ("text", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("text", {"prompt": "x", "best_of": 3}, "best_of"),
        ("text", {"prompt": "x", "echo": True}, "echo"),
        ("text", {"prompt": "x", "logprobs": 9}, "logprobs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_named_in_the_requests_own_terms(ask, kind, said, param) -> None:
    wrong = ask(kind, **({"messages": USER} if kind == "chat" else {}) | said)
    with pytest.raises(openai.BadRequestError) as caught:
        wrong.result()
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_what_asks_for_nothing_is_accepted(ask, executor) -> None:
    nothing = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}}
    message = {"role": "assistant", "content": [{"type": "text", "text": "Two"}], "refusal": None, "tool_calls": None}
    answer = ask("chat", messages=[*USER, message, *USER], store=False, user="me", **nothing)
    work = executor.next()
    assert [turn["content"] for turn in work["messages"]] == ["How many?", "Two", "How many?"]
    executor.sends(piece(work, 1, text("yes", finish_reason="stop"), over=True))
    assert answer.result().choices[0].message.content == "yes"


def test_a_wrong_prompt_is_told_by_the_executor_and_is_a_400(ask, executor) -> None:
    answer = ask("chat", messages=USER, stream=True)
    work = executor.next()
    failed = {"code": "context_length_exceeded", "message": "the base has 9 positions", "param": "messages"}
    executor.sends(piece(work, 1, over=True, failed=failed, prompt_tokens=0))
    assert "9 positions" in refused(answer, openai.BadRequestError, "context_length_exceeded", "messages").message


def test_limits_of_requests_and_tokens(ask, executor, tenant, server, app, database, admin, monkeypatch) -> None:
    for state in (server.state, app.state.motet):
        changes = {"completion_requests_at_once": 2, "completion_tokens_per_minute": 1000}
        for name, value in changes.items():
            monkeypatch.setitem(state.settings.__dict__, name, value)
    first = ask("chat", messages=USER, max_tokens=100)
    work = executor.next()
    big = refused(ask("chat", messages=USER, max_tokens=901), openai.RateLimitError, "rate_limit_exceeded")
    assert "1000 tokens a minute" in big.message
    assert big.response.headers["retry-after"] == "60"
    second = ask("chat", messages=USER, max_tokens=100)
    other = executor.next()
    many = refused(ask("chat", messages=USER, max_tokens=10), openai.RateLimitError, "rate_limit_exceeded")
    assert "2 at once" in many.message
    for one in (work, other):
        executor.sends(piece(one, 1, text("yes", finish_reason="stop"), over=True))
    assert [one.result().choices[0].message.content for one in (first, second)] == ["yes", "yes"]
    third = ask("chat", messages=USER, max_tokens=900)  # what the first took less than it might have is free again
    executor.sends(piece(executor.next(), 1, text("yes", finish_reason="stop"), over=True))
    third.result()
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(month_tokens_quota=20))
    over = refused(ask("chat", messages=USER, max_tokens=10), openai.PermissionDeniedError, "quota_exceeded")
    assert "month tokens is 20" in over.message


def test_an_executor_that_ends_before_it_sent_anything_has_another_answer(ask, executor, monkeypatch, database) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))  # not streamed: nothing has left yet
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(claimed_until=func.now())
        )
    other = Executor(executor.placement, "executor-2")
    again = other.next()
    assert again == work
    assert executor.sends(piece(work, 2, text("st", finish_reason="stop"), over=True)) == [work["request_id"]]
    assert executor.wants(held=(work["request_id"],))["gone"] == [work["request_id"]]
    other.sends(piece(again, 1, text("whole", finish_reason="stop"), over=True))
    said = answer.result()
    assert said.choices[0].message.content == "whole"


def test_an_executor_that_ends_in_the_middle_of_a_stream_ends_it_with_an_error(ask, executor, database) -> None:
    answer = ask("chat", messages=USER, stream=True)
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    stream = iter(answer.result())
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "lo"]
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(claimed_until=func.now())
        )
    with pytest.raises(openai.APIError, match="executor ended before the answer did"):
        next(stream)


def test_a_request_that_ends_two_executors_is_not_given_to_a_third(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    for _ in range(2):
        work = executor.next()
        with database.begin() as session:
            own = CompletionRequest.id == work["request_id"]
            session.execute(update(CompletionRequest).where(own).values(claimed_until=func.now()))
    refused(answer, openai.InternalServerError, "completion_lost")


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_cancels_its_request(server, tenant, executor, streams, database) -> None:
    gone = threading.Event()

    def leave() -> None:
        client = httpx.Client(timeout=60)
        said = {"model": "small", "messages": USER, "stream": streams}
        with client.stream("POST", f"{server.url}/openai/v1/chat/completions", headers=tenant.headers, json=said) as answer:
            if streams:
                next(answer.iter_text())
            gone.set()

    def leave_unanswered() -> None:
        said = {"model": "small", "messages": USER}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/openai/v1/chat/completions", headers=tenant.headers, json=said, timeout=2)
        gone.set()

    thread = threading.Thread(target=leave if streams else leave_unanswered)
    thread.start()
    work = executor.next()
    executor.sends(piece(work, 1, text("lo")))
    thread.join()
    assert gone.is_set()
    held = (work["request_id"],)
    until(lambda: executor.wants(room=0, held=held)["gone"] == [work["request_id"]])
    executor.sends(piece(work, 2, over=True))
    with database.begin() as session:
        used = session.scalars(select(CompletionUsage).where(CompletionUsage.tenant_id == tenant.tenant_id)).one()
        assert (used.prompt_tokens, used.completion_tokens) == (5, 4), "what was generated until then is billed"


def test_whose_api_process_has_died_waits_for_nobody(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    work = executor.next()
    assert executor.wants(held=(work["request_id"],))["gone"] == []
    with database.begin() as session:
        session.execute(
            update(CompletionRequest).where(CompletionRequest.id == work["request_id"]).values(asker_until=func.now())
        )
    assert executor.wants(held=(work["request_id"],))["gone"] == [work["request_id"]]
    executor.sends(piece(work, 1, text("x", finish_reason="stop"), over=True))
    answer.result()


def test_isolation_a_dedicated_executor_answers_its_tenant_alone(ask, training, new_tenant, server, tenant, database) -> None:
    dedicated = Executor(training(isolation="dedicated"))
    with asking(server, new_tenant().key) as theirs:
        other = theirs("chat", messages=USER)
        until(lambda: not dedicated.wants()["requests"])
        mine = ask("chat", messages=USER)
        work = dedicated.next()
        assert work["tenant_id"] == tenant.tenant_id
        assert dedicated.wants()["requests"] == []
        dedicated.sends(piece(work, 1, text("mine", finish_reason="stop"), over=True))
        assert mine.result().choices[0].message.content == "mine"
        shared = Executor(training(new_tenant()), "executor-2")
        work = shared.next()
        shared.sends(piece(work, 1, text("theirs", finish_reason="stop"), over=True))
        assert other.result().choices[0].message.content == "theirs"
    dedicated.placement.report(points(0, [1, 2, 3]), dedicated.placement.checkpoint({0: 3}))
    job = dedicated.placement.given.jobs[0].job_id
    secret = ask("chat", messages=USER, model=job)
    work = dedicated.next()
    assert work["checkpoint"]["file"]["step"] == 3
    dedicated.sends(piece(work, 1, text("secret", finish_reason="stop"), over=True))
    assert secret.result().choices[0].message.content == "secret"
    again = ask("chat", messages=USER, model=job)
    with database.begin() as session:
        until(lambda: session.scalar(select(CompletionRequest.id).where(CompletionRequest.state == "waiting")))
    assert shared.wants()["requests"] == [], "the adapter of a task that shares with nobody goes where its tenant is alone"
    dedicated.sends(piece(dedicated.next(), 1, text("again", finish_reason="stop"), over=True))
    assert again.result().choices[0].message.content == "again"


def test_tokens_of_other_placements_are_refused(executor, training) -> None:
    said = {"fence": 1, "executor": "executor-1", "room": 1, "held": [], "wait": 0}
    other = training()
    answer = executor.placement.node.call("POST", f"placements/{executor.placement.id}/completions", other.given.token, said)
    assert (answer.status_code, answer.json()["code"]) == (401, "placement_token_refused")
    executor.placement.node.lost(executor.placement)
    answer = executor.placement.call("POST", "completions", said)
    assert (answer.status_code, answer.json()["code"]) == (409, "fence_stale")


def test_an_executor_that_waits_is_woken_by_a_request(ask, executor, server) -> None:
    path = f"{server.url}/internal/v1/placements/{executor.placement.id}/completions"
    said = {"fence": executor.placement.given.fence, "executor": "executor-1", "room": 1, "held": [], "wait": 30}
    headers = {"Authorization": f"Bearer {executor.placement.given.token}"}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: httpx.post(path, json=said, headers=headers, timeout=60))
        answer = ask("chat", messages=USER)
        work = waiting.result().json()["requests"][0]
    executor.sends(piece(work, 1, text("yes", finish_reason="stop"), over=True))
    assert answer.result().choices[0].message.content == "yes"


def test_rows_are_removed_after_an_hour(ask, executor, database) -> None:
    answer = ask("chat", messages=USER)
    executor.sends(piece(executor.next(), 1, text("yes", finish_reason="stop"), over=True))
    answer.result()
    assert forget(database, Retention())["completion_requests"] == 0
    with database.begin() as session:
        session.execute(update(CompletionRequest).values(id=func.concat("cmpl_00", func.substr(CompletionRequest.id, 8))))
    assert forget(database, Retention())["completion_requests"] >= 1


def test_motets_own_client_asks_by_the_same_routes(server, tenant, executor) -> None:
    with Client(server.url, tenant.key) as client, ThreadPoolExecutor(2) as threads:
        parts = threads.submit(lambda: list(client.completions.stream("small", "How many?", seed=3)))
        work = executor.next()
        executor.sends(piece(work, 1, text("fo")), piece(work, 2, text("ur", finish_reason="stop"), over=True))
        assert "".join(part.text for part in parts.result()) == "four"
        assert parts.result()[-1].usage == TokenCounts(prompt_tokens=5, completion_tokens=4)
        whole = threads.submit(lambda: client.completions.create("small", "Once", plain=True, max_tokens=4))
        work = executor.next()
        executor.sends(piece(work, 1, text("upon", finish_reason="length"), over=True))
        assert (whole.result().text, whole.result().finish_reason) == ("upon", "length")
        with pytest.raises(ApiError) as caught:
            client.completions.create("nothing", "How many?")
        assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_a_claim_outlasts_a_poll_and_the_asker_outlasts_a_tick() -> None:
    assert executor_claims.CLAIM_SECONDS > 5.0
    assert following.ASKER_SECONDS > 10 * following._TICK_SECONDS
