"""Nobody trains on a base: who asks it gets an executor, which answers, gives way to a task at once, and goes when idle."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.walk.running_stack import PATIENCE, RunningStack, running_stack, until
from tests.walk.test_completions import ASKED, NEW, QUICK, alone, sdk, start

ALONE = QUICK | {"MOTET_COMPLETION_IDLE_SECONDS": "15", "MOTET_COMPLETION_WAIT_SECONDS": "60"}
HOW: Any = {"messages": ASKED, "max_tokens": NEW, "temperature": 0}


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), **ALONE) as it:
        yield it


def held(motet: RunningStack) -> list[str]:
    """The bases that are held to be asked alone."""
    nodes = motet.http.get("/v1/schedule").json()["nodes"]
    return [one["base_model"] for node in nodes for one in node["answering"]]


@pytest.mark.timeout(1200)
def test_an_executor_is_started_for_who_asks_and_let_go(motet: RunningStack, tmp_path: Path) -> None:
    mine, theirs = motet.http, motet.tenant("other")
    task = start(motet, mine, 20, 1)
    motet.ended(task)
    client, other = sdk(motet, mine), sdk(motet, theirs)
    model = next(one.id for one in client.models.list() if one.id.startswith("ft:"))
    with ThreadPoolExecutor(2) as threads:
        both = [
            threads.submit(client.chat.completions.create, model=model, **HOW),
            threads.submit(other.chat.completions.create, model="base", **HOW),
        ]
        said = [one.result().choices[0].message.content for one in both]
    assert held(motet) == ["base"], "two tenants share the base"
    assert said[0] == alone(mine, task, tmp_path / "alone")
    assert said[0] != said[1]
    client.chat.completions.create(model=model, **HOW)
    assert held(motet) == ["base"]
    assert mine.get("/v1/usage").json()["completions"]["requests"] >= 1

    arrives = start(motet, mine, 100, 2)
    running = motet.until(arrives, lambda one: one["status"] == "running")
    assert held(motet) == [], "the task has the device"
    assert running["waiting"] is None
    assert client.chat.completions.create(model=model, **HOW).choices[0].message.content == said[0]
    motet.ended(arrives)

    assert client.chat.completions.create(model=model, **HOW).choices[0].message.content == said[0]
    assert held(motet) == ["base"]
    until(lambda: held(motet) == [])
    motet.ended(start(motet, mine, 5, 3))


def killed(motet: RunningStack, name: str) -> None:
    """Kill this program, Valkey with all that it held, and wait until it runs again."""
    if name == "valkey":
        with motet.valkey as valkey:
            valkey.flushall()
    os.kill(motet.pids[name], signal.SIGKILL)
    motet.event(lambda event: event["event"] == "restarted" and event["name"] == name, seconds=PATIENCE)


def answered(client: OpenAI) -> str:
    """An answer of the base; where there is none yet, the SDK asks again as the refusal says."""
    patient = client.with_options(max_retries=5)
    return patient.chat.completions.create(model="base", **HOW).choices[0].message.content or ""


@pytest.mark.timeout(1200)
def test_restarts_in_the_middle_end_an_answer_at_most(motet: RunningStack) -> None:
    client = sdk(motet, motet.http)
    first = answered(client)
    for name in ("queue", "reconcile", "valkey", "worker"):
        stream = iter(client.chat.completions.create(model="base", stream=True, **HOW | {"max_tokens": 400}))
        assert next(stream).choices[0].delta.role == "assistant"
        assert any(one.choices[0].delta.content for one in stream), "what a client has read is not begun anew"
        stopped = motet.below("worker", "worker.executor") if name == "worker" else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)  # so that the answer is not over before its worker is
        killed(motet, name)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if name == "worker":
            with pytest.raises(openai.APIError, match="ended before the answer did"):
                list(stream)
        else:
            assert list(stream)[-1].choices[0].finish_reason is not None
        assert answered(client) == first
        assert held(motet) == ["base"], name
    for pid in motet.below("worker", "worker.executor"):
        os.kill(pid, signal.SIGKILL)
    assert answered(client) == first
    until(lambda: held(motet) == [])
    motet.ended(start(motet, motet.http, 5, 4))
