"""Tasks with an endpoint grader on a scripted node, the grader's server, and a courier to be run at will."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import IPv4Network

import pytest
from sqlalchemy import func, update

from contract.compatibility.capabilities import understood
from service.background.reconciler import grader_courier_of
from service.graders import text_claims
from service.graders.grader_courier import GraderCourier
from service.graders.models import EndpointGrader, GradedText
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import ScriptedPlacement, completed, moved, points
from tests.service.graders.grader_server import GraderServer
from tests.service.webhooks.serving import serving

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]

HERE = IPv4Network("127.0.0.0/8")


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    """Graders on this machine may be called."""
    return settings_for(database_url, tmp_path_factory.mktemp("service"), grader_networks=(HERE,), grader_seconds=600)


@pytest.fixture(autouse=True)
def long_waits(monkeypatch) -> None:
    """No time for another try comes by itself, however slow a test is: `due` lets it come."""
    monkeypatch.setattr(text_claims, "WAITS", (timedelta(hours=3),) * len(text_claims.WAITS))


@pytest.fixture
def grader() -> Iterator[GraderServer]:
    with serving(GraderServer()) as made:
        yield made


@pytest.fixture
def courier(dependencies) -> GraderCourier:
    return grader_courier_of(dependencies)


@pytest.fixture
def due(database) -> Callable[[], None]:
    """Let the time come at which texts are sent again, and at which graders' rates allow the next one."""

    def act() -> None:
        with database.begin() as session:
            now = func.clock_timestamp() - timedelta(seconds=1)
            session.execute(update(GradedText).where(~GradedText.done).values(next_at=now))
            session.execute(update(GradedText).where(GradedText.held_until.is_not(None)).values(held_until=now))
            session.execute(update(EndpointGrader).values(next_call_at=None))

    return act


@pytest.fixture
def placed(tenant, new_node, plan, grader) -> Callable[..., ScriptedPlacement]:
    """A task whose texts `judge` grades, taken up by a node: `placed(rate_limit=4, evaluation={"milestones": ...})`."""
    node = None

    def place(whose=tenant, evaluation=None, **judge: object) -> ScriptedPlacement:
        nonlocal node
        metrics = [{"type": "exact_match"}, {"type": "endpoint", "name": "judge", "url": grader.url, **judge}]
        node = node or new_node(said={"capabilities": sorted(understood())}, slots=4)
        task = whose.task(evaluation={"metrics": metrics, **(evaluation or {})})
        plan()
        taken = node.take(task["id"])
        taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
        return taken

    return place


def wrote(job: int | None, *texts: str, **more: object) -> dict:
    """An evaluation of these texts, each of whose prompts is answered by "yes"."""
    exact = [float(text == "yes") for text in texts]
    asked = {"reference": "yes", "finish_reason": "stop"}
    full = [{"prompt": f"{place}?", "text": text, **asked} for place, text in enumerate(texts)]
    samples = [{**one, "scores": {"exact_match": score}} for one, score in zip(full, exact, strict=True)][:8]
    said = {"kind": "texts_evaluated", "job": job, "step": None if job is None else 18, "prompts": len(texts)}
    mean = {"exact_match": sum(exact) / len(exact)}
    return said | {"scores": mean, "prompt_scores": {"exact_match": exact}, "samples": samples, "texts": full, **more}


def finished(taken: ScriptedPlacement, *of_jobs: tuple[str, ...], base: tuple[str, ...] = ("no", "no")) -> None:
    """All jobs end, the first with the lowest loss, each with these texts."""
    taken.report(wrote(None, *base))
    for job, texts in enumerate(of_jobs):
        taken.report(wrote(job, *texts), taken.adapter(job, 1.25 + job), completed(job, 20, 18, 1.25 + job))


def evaluations(tenant, taken: ScriptedPlacement, **params: object) -> list[dict]:
    response = tenant.get(f"/v1/tasks/{taken.given.task_id}/evaluations", params=params)
    assert response.status_code == 200, response.text
    return response.json()["data"]
