"""Two tenants ask adapters of one base while a third task trains on it, through real processes and OpenAI's SDK, and the
executor is killed meanwhile."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import peft
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.walk.running_stack import BASE_MODEL, RunningStack, running_stack, short_rows, stopped, unpacked

QUICK = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "1",
    "MOTET_COMPLETION_WAIT_SECONDS": "100",
    "MOTET_WORKER_COMPLETION_SHARE": "0.5",
}
ASKED: Any = [{"role": "user", "content": "How many apples are left?"}]
NEW = 10


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), **QUICK) as it:
        yield it


def start(motet: RunningStack, http: httpx.Client, steps: int, seed: int = 0) -> str:
    return motet.submit(
        http,
        dataset={"file_id": motet.upload(short_rows(64), http)},
        search_space={"learning_rate": [5e-3], "rank": [8], "batch_size": [4], "seed": [seed]},
        training={"epochs": 100, "max_steps": steps, "max_seq_len": 64},
        early_exit={"policy": "none", "eval_every": steps},
    )


def sdk(motet: RunningStack, http: httpx.Client) -> OpenAI:
    key = http.headers["Authorization"].removeprefix("Bearer ")
    return OpenAI(base_url=f"{motet.url}/openai/v1", api_key=key, max_retries=0, timeout=120)


def alone(http: httpx.Client, task_id: str, folder: Any) -> str:
    """What transformers and PEFT generate with the task's adapter."""
    archive = http.get(f"/v1/tasks/{task_id}/adapter")
    assert archive.status_code == 200, archive.text
    folder.mkdir()
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)
    tokens = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    base = AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, unpacked(archive.content, folder))
    said = model.generate(input_ids=tokens, max_new_tokens=NEW, do_sample=False)[0, tokens.shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def curves(http: httpx.Client, task_id: str) -> Any:
    return [one["values"] for one in http.get(f"/v1/tasks/{task_id}/metrics").json()["data"]]


@pytest.mark.timeout(1200)
def test_two_tenants_ask_beside_a_task_that_trains(motet: RunningStack, tmp_path: Any) -> None:
    mine, theirs = motet.http, motet.tenant("other")
    tasks = [start(motet, mine, 20, 1), start(motet, theirs, 20, 2)]
    models = []
    for http, task in zip((mine, theirs), tasks, strict=True):
        motet.ended(task, http=http)
        models.append(next(model.id for model in sdk(motet, http).models.list() if model.id.startswith("ft:")))
    quiet = start(motet, mine, 150)
    motet.ended(quiet)

    beside = start(motet, mine, 150)
    motet.until(beside, lambda task: task["status"] == "running" and task["progress"]["steps_done"] >= 1)
    how = {"messages": ASKED, "max_tokens": NEW, "temperature": 0}
    clients = [sdk(motet, mine), sdk(motet, theirs)]
    with ThreadPoolExecutor(4) as threads:
        whole = [
            threads.submit(one.chat.completions.create, model=model, **how) for one, model in zip(clients, models, strict=True)
        ]
        said = [one.result().choices[0].message.content for one in whole]
    assert said == [alone(http, task, tmp_path / task) for http, task in zip((mine, theirs), tasks, strict=True)]
    assert said[0] != said[1]
    with pytest.raises(openai.NotFoundError):
        clients[0].chat.completions.create(model=models[1], **how)
    motet.ended(beside)
    assert curves(mine, beside) == curves(mine, quiet), "training has the same bits beside requests"

    long = start(motet, mine, 5000)
    motet.until(long, lambda task: task["status"] == "running" and task["progress"]["steps_done"] >= 1)
    chunks = list(clients[0].chat.completions.create(model=models[0], stream=True, **how))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said[0]
    drawn = {"messages": ASKED, "max_tokens": 6, "temperature": 1.0, "seed": 5, "n": 2}
    twice = [clients[0].chat.completions.create(model="base", **drawn) for _ in range(2)]
    texts = [[choice.message.content for choice in one.choices] for one in twice]
    assert texts[0] == texts[1]

    # killed in the middle: what has sent nothing to its client is answered by the next executor
    with ThreadPoolExecutor(2) as threads:
        stream = iter(clients[0].chat.completions.create(model=models[0], stream=True, **how | {"max_tokens": 400}))
        (executor, *spare) = motet.below("worker", "worker.executor")
        assert next(stream).choices[0].delta.role == "assistant"
        with stopped((executor, *spare)):
            waiting = threads.submit(clients[1].chat.completions.create, model=models[1], **how)
            for pid in (executor, *spare):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="ended before the answer did"):
            list(stream)
        assert waiting.result().choices[0].message.content == said[1]
    assert mine.post(f"/v1/tasks/{long}/cancel").is_success
    used = mine.get("/v1/usage").json()["completions"]
    assert used["requests"] >= 4
    assert used["completion_tokens"] >= 2 * NEW + 12
    # nobody trains on the base any more: an executor is started for who asks
    assert clients[0].chat.completions.create(model=models[0], **how).choices[0].message.content == said[0]
