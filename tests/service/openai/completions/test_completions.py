"""Completions through the unmodified SDK, a scripted executor behind the real service: objects, streams, models, mistakes."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import openai
import pytest
from motet import ApiError, Client
from motet.api.resources import TokenCounts
from pydantic import ValidationError
from sqlalchemy import func, select, update

from service.completions.models import CompletionPieces, CompletionRequest
from service.http.openai_ids import own_id
from service.openai.completions.completion_requests import TextRequest
from service.tasks.models import Job
from service.usage.models import CompletionUsage
from tests.service.adapters.adapter_uploads import safetensors, tensors, upload
from tests.service.fleet.scripted import points
from tests.service.live_server import PATIENCE
from tests.service.openai.completions.answerer import waiting
from tests.service.openai.completions.completion_executor import USER, Executor, adapter_of, asking, piece, refused, text


def test_a_chat_completion_has_openais_shape_and_is_billed(ask, executor, tenant, database) -> None:
    more = {"n": 2, "logprobs": True, "top_logprobs": 1, "seed": -3, "stop": ["END"], "max_completion_tokens": 9}
    told = {"role": "developer", "content": "Be brief.", "name": "boss"}
    answer = ask("chat", messages=[told, *USER], temperature=0.5, top_p=0.9, **more)
    work = executor.next()
    assert [(turn["role"], turn.get("name")) for turn in work["messages"]] == [("system", "boss"), ("user", None)]
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
        how = {"headers": tenant.headers, "timeout": PATIENCE}
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


@pytest.mark.parametrize("column", [Job.checkpoint, Job.config, CompletionRequest.work])
def test_a_damaged_row_ends_its_request_alone(ask, executor, database, column) -> None:
    executor.placement.report(points(0, [1, 2, 3]), executor.placement.checkpoint({0: 3}))
    job = executor.placement.given.jobs[0].job_id
    damaged = ask("chat", messages=USER, model=job)
    waiting(database)
    with database.begin() as session:
        whose = CompletionRequest.job_id == job if column is CompletionRequest.work else Job.id == job
        session.execute(update(column.class_.__table__).where(whose).values({column.key: {"n": 3}}))
    other = ask("chat", messages=USER)
    executor.sends(piece(executor.next(), 1, text("yes", finish_reason="stop"), over=True))
    assert other.result().choices[0].message.content == "yes"
    with pytest.raises(openai.APIError):
        damaged.result()


def test_an_uploaded_adapter_is_asked_listed_and_trained_on(server, tenant, new_tenant, training, toy) -> None:
    made = upload(tenant, safetensors(tensors()), name="mine").json()
    tuned = f"ft:toy:mine:{made['id']}"
    answerer = Executor(training(base_model="toy"))
    with asking(server, tenant.key) as ask:
        asked = [(ask("chat", messages=USER, model=name), answerer.next()) for name in (made["id"], tuned)]
        for _, work in asked:
            assert work["adapter"] == made["files"]
            path = f"completions/{work['request_id']}/objects/{made['files'][1]['sha256']}"
            assert answerer.placement.call("GET", path).content == safetensors(tensors())
            answerer.sends(piece(work, 1, text("yes", finish_reason="stop"), over=True))
        assert [answer.result().choices[0].message.content for answer, _ in asked] == ["yes"] * 2
        refused(ask("chat", messages=USER, model=f"ft:toy::{made['id']}"), openai.NotFoundError, "not_found")
    with asking(server, new_tenant().key) as theirs:
        refused(theirs("chat", messages=USER, model=tuned), openai.NotFoundError, "not_found")
    listed = [one["id"] for one in tenant.get("/openai/v1/models").json()["data"]]
    assert tuned in listed
    assert tenant.get("/openai/v1/models", params={"after": tuned}).json()["data"] == []
    assert tenant.get(f"/openai/v1/models/{tuned}").json()["id"] == tuned
    space = {"learning_rate": [1e-4], "batch_size": [4]}
    said = {"model": tuned, "training_file": tenant.file(), "search_space": space, "training": {"max_seq_len": 64}}
    job = tenant.post("/openai/v1/fine_tuning/jobs", json=said).json()
    assert job["model"] == tuned, job
    path = f"/v1/tasks/{own_id(job['id'])}"
    task = tenant.get(path).json()
    assert (task["base_model"], task["spec"]["warm_start"]) == ("toy", {"adapter_id": made["id"]})
    assert task["spec"]["search_space"]["rank"] == [2]
    assert tenant.post(f"{path}/cancel").status_code == 200
    assert tenant.delete(f"/openai/v1/models/{tuned}").json()["deleted"] is True
    assert tenant.get(f"/openai/v1/models/{tuned}").status_code == 404


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
    waiting(database)
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
        ("text", {"prompt": ["x"] * 9, "n": 2}, "prompt"),
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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("\ud800", "holds a lone surrogate"),
        ("a\0", "holds a NUL character"),
        ("x" * 400_001, "holds a text of 400001 characters; at most 400000"),
    ],
    ids=["surrogate", "nul", "long"],
)
def test_a_prompt_that_cannot_be_read_is_told_why(wrong, said) -> None:
    for prompt in (wrong, ["ok", wrong]):
        with pytest.raises(ValidationError) as refused:
            TextRequest.model_validate({"model": "small", "prompt": prompt})
        (error,) = refused.value.errors()
        assert error["loc"] == ("prompt",)
        assert said in error["msg"]


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
