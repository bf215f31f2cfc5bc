"""A scripted executor that answers completions behind the real service, and what its tests share."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.service.fleet.scripted import ScriptedPlacement, completed
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


@contextmanager
def asking(server: Server, key: str) -> Iterator[Callable[..., Future[Any]]]:
    """Ask in a thread: `ask("chat", model=..., ...)`."""
    with OpenAI(base_url=f"{server.url}/openai/v1", api_key=key, max_retries=0) as client, ThreadPoolExecutor(16) as threads:
        calls = {"chat": client.chat.completions.create, "text": client.completions.create}
        yield lambda kind, **said: threads.submit(lambda: calls[kind](**{"model": "small", **said}))


def adapter_of(placement: ScriptedPlacement) -> str:
    """The task's first job ends with an adapter: its id."""
    placement.report(placement.adapter(0, 1.25), completed(0))
    return placement.given.jobs[0].job_id


def refused(future: Future[Any], kind: type[openai.APIStatusError], code: str, param: str | None = None) -> Any:
    with pytest.raises(kind) as caught:
        future.result()
    assert (caught.value.code, caught.value.param) == (code, param), caught.value.message
    return caught.value
