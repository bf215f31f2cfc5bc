"""Tasks that are mirrored, on a scripted node; an MLflow-shaped server, and a courier to be run at will."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import IPv4Network
from typing import Any

import pytest
from sqlalchemy import func, update

from contract.compatibility.capabilities import understood
from service.mirrors import mirror_claims
from service.mirrors.mirror_courier import MirrorCourier
from service.mirrors.models import TaskMirror
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import ScriptedPlacement, completed, moved
from tests.service.mirrors.mlflow_server import MlflowServer
from tests.service.webhooks.serving import serving

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]

HERE = IPv4Network("127.0.0.0/8")
TOKEN = "a-token-of-the-tracking-server"


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    """Tracking servers on this machine may be called."""
    return settings_for(database_url, tmp_path_factory.mktemp("service"), tracking_networks=(HERE,))


@pytest.fixture(autouse=True)
def long_waits(monkeypatch) -> None:
    """No time for another visit comes by itself, however slow a test is: `due` lets it come."""
    monkeypatch.setattr(mirror_claims, "WAITS", (timedelta(hours=3),) * len(mirror_claims.WAITS))
    monkeypatch.setattr(mirror_claims, "EVERY", timedelta(hours=3))


@pytest.fixture
def mlflow() -> Iterator[MlflowServer]:
    with serving(MlflowServer()) as made:
        yield made


@pytest.fixture
def courier(dependencies, settings) -> MirrorCourier:
    return MirrorCourier.of(settings, dependencies.db)


@pytest.fixture
def due(database) -> Callable[[], None]:
    """Let the time of the next visit come, and the visibility timeout of one that broke off."""

    def act() -> None:
        with database.begin() as session:
            now = func.clock_timestamp() - timedelta(seconds=1)
            session.execute(update(TaskMirror).values(next_at=now, held_until=None))

    return act


def added(tenant, mlflow: MlflowServer, name: str = "lab", **more: Any) -> dict[str, Any]:
    answer = tenant.post("/v1/tracking-servers", json={"name": name, "url": mlflow.url, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture
def placed(tenant, new_node, plan, mlflow) -> Callable[..., ScriptedPlacement]:
    """A task of two jobs that is mirrored, taken up by a node; its first jobs have begun."""
    node = None

    def place(whose=tenant, server: MlflowServer = mlflow, begun: int = 2, **integration: object) -> ScriptedPlacement:
        nonlocal node
        if not whose.get("/v1/tracking-servers").json()["data"]:
            added(whose, server, credentials={"token": TOKEN})
        node = node or new_node(said={"capabilities": sorted(understood() - {"integrations"})}, slots=10)
        asked = {"type": "mlflow", "server": "lab", "experiment": "voices", **integration}
        task = whose.task(integrations=[asked])
        plan()
        taken = node.take(task["id"])
        taken.report(taken.attached(), *(moved(job, "warmup") for job in range(begun)))
        return taken

    return place


def mirror_of(tenant, taken: ScriptedPlacement) -> dict[str, Any]:
    response = tenant.get(f"/v1/tasks/{taken.given.task_id}/mirrors")
    assert response.status_code == 200, response.text
    (found,) = response.json()["data"]
    return dict(found)


def finished(taken: ScriptedPlacement) -> None:
    """Both jobs end; the first wins."""
    taken.report(taken.adapter(0, 1.25), completed(0, 20, 18, 1.25), completed(1, 20, None, None))


def job_ids(taken: ScriptedPlacement) -> list[str]:
    return [job.job_id for job in taken.given.jobs]
