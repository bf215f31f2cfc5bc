"""One trace from the request to the training steps, by real processes and a collector on loopback; and without it."""

from collections.abc import Iterator

import pytest

from tests.collector import Collector, SeenSpan, collecting
from tests.walk.running_stack import RunningStack, running_stack, short_rows

TRACE, CALLER = "ab" * 16, "cd" * 8
OF_THE_NODE = {
    "start executor",
    *(f"prepare {part}" for part in ("base", "checkpoints", "rows", "kernels", "memory profile", "revision", "first weights")),
    *("evaluate base", "warmup", "train", "export adapter", "upload adapter"),
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), MOTET_OTLP_ENDPOINT=collector.endpoint) as it:
        yield it


def submit(motet: RunningStack, **headers: str) -> str:
    spec = {
        "base_model": "base",
        "dataset": {"file_id": motet.upload(short_rows(24)), "validation_fraction": 0.25},
        "search_space": {"learning_rate": [3e-3, 1e-3], "batch_size": [4]},
        "training": {"max_steps": 8},
        "early_exit": {"eval_every": 2, "warmup_fraction": 0.25},
    }
    answer = motet.http.post("/v1/tasks", json=spec, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_trace_links_the_request_to_the_steps_of_its_task(motet: RunningStack, collector: Collector) -> None:
    task_id = submit(motet, traceparent=f"00-{TRACE}-{CALLER}-01")
    assert motet.ended(task_id)["status"] == "succeeded"
    steps = sum(job["step"] for job in motet.jobs(task_id))
    wanted = OF_THE_NODE | {"POST /v1/tasks", "task", "check files", "wait", "plan", "placement", "pull"}
    kept = sorted(job["index"] for job in motet.jobs(task_id) if job["adapter_id"])

    def all_there(seen: list[SeenSpan]) -> bool:
        """Several processes send them, each when it likes."""
        names = [span.name for span in seen if span.trace == TRACE]
        return wanted <= set(names) and names.count("upload adapter") == len(kept)

    spans = [span for span in collector.until(all_there) if span.trace == TRACE]
    by_name: dict[str, list[SeenSpan]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    assert set(by_name) == wanted

    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans)
    (request,) = by_name["POST /v1/tasks"]
    assert request.parent == CALLER
    for span in spans:  # each hangs, through spans that are there, from the request
        while span is not request:
            assert span.began <= span.ended
            span = by_id[span.parent]
    (placement,) = by_name["placement"]
    assert {span.parent for name in OF_THE_NODE | {"pull"} for span in by_name[name]} == {placement.id}
    assert {span.resource["service.name"] for span in spans} >= {"motet-api", "motet-queue", "motet-worker"}

    (warmup,), (train,) = by_name["warmup"], by_name["train"]
    assert warmup.began < warmup.ended <= train.ended
    packed = warmup.attributes["motet.steps"] + train.attributes["motet.steps"]
    assert packed == placement.attributes["motet.steps"]
    assert 8 <= packed <= steps
    assert sorted(span.attributes["motet.job"] for span in by_name["upload adapter"]) == kept


def test_a_collector_that_is_gone_changes_nothing_for_a_task(motet: RunningStack, collector: Collector) -> None:
    """It takes connections and answers nothing, which is worse than not to be there."""
    collector.held.clear()
    requests = len(collector.requests)
    task_id = submit(motet)
    assert motet.ended(task_id)["status"] == "succeeded"
    collector.asked(requests + 1)
    collector.held.set()
