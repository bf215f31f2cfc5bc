"""Tasks that are mirrored, on a scripted node; servers that stand for trackers, and a courier to be run at will."""

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
from tests.service.mirrors.scripted_tracker import ScriptedTracker
from tests.service.mirrors.wandb_server import KEY, WandbServer
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
def wandb() -> Iterator[WandbServer]:
    with serving(WandbServer()) as made:
        yield made
    assert made.wrong == []


@pytest.fixture(params=["mlflow", "wandb"])
def tracker(request) -> ScriptedTracker:
    """A server of either type, on which `placed` mirrors, too."""
    made: ScriptedTracker = request.getfixturevalue(request.param)
    return made


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


def added(tenant, server: ScriptedTracker, name: str = "lab", **more: Any) -> dict[str, Any]:
    if isinstance(server, WandbServer):
        more = {"type": "wandb", "credentials": {"api_key": KEY}, **more}
    answer = tenant.post("/v1/tracking-servers", json={"name": name, "url": server.url, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def integration(server: ScriptedTracker, experiment: str, said: dict[str, Any]) -> dict[str, Any]:
    if isinstance(server, WandbServer):
        return {"type": "wandb", "wandb": {"project": experiment, **said}}
    return {"type": "mlflow", "server": "lab", "experiment": experiment, **said}


@pytest.fixture
def placed(request, tenant, new_node, plan) -> Callable[..., ScriptedPlacement]:
    """A task of two jobs that is mirrored, taken up by a node; its first jobs have begun. Where the test has no `tracker` and
    says no other, on MLflow."""
    named = "tracker" if "tracker" in request.fixturenames else "mlflow"
    usual: ScriptedTracker = request.getfixturevalue(named)
    node = None

    def place(
        whose=tenant,
        server: ScriptedTracker = usual,
        begun: int = 2,
        experiment: str = "voices",
        spec: dict[str, Any] | None = None,
        **said: object,
    ) -> ScriptedPlacement:
        nonlocal node
        if not whose.get("/v1/tracking-servers").json()["data"]:
            added(whose, server, **({} if isinstance(server, WandbServer) else {"credentials": {"token": TOKEN}}))
        node = node or new_node(said={"capabilities": sorted(understood() - {"integrations"})}, slots=10)
        task = whose.task(integrations=[integration(server, experiment, said)], **(spec or {}))
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
