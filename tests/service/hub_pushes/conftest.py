"""A hub on loopback that can be written to, adapters to push, and a courier that works when it is told to."""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, update

from service.database import claimed_rows
from service.database.engine import Database, clock
from service.dependencies import Dependencies
from service.hub_pushes.models import HubPush
from service.hub_pushes.push_courier import HubPushCourier
from tests.hub.hub_process import HubProcess, hub_process
from tests.service.adapters.adapter_uploads import safetensors
from tests.service.api import Caller
from tests.service.hub_pushes.pushing import CONFIG
from tests.service.sample_tasks import adapter, jobs_of


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), hf_endpoint=hub.url)


@pytest.fixture(autouse=True)
def long_waits(monkeypatch) -> None:
    """No time for another try comes by itself, however slow a test is."""
    monkeypatch.setattr(claimed_rows, "WAITS", (timedelta(hours=3),) * len(claimed_rows.WAITS))


@pytest.fixture(autouse=True)
def working(hub, database) -> Iterator[None]:
    yield
    hub.faults()
    with database.begin() as session:
        session.execute(delete(HubPush).where(HubPush.status == "open"))


@pytest.fixture
def dependencies(settings) -> Iterator[Dependencies]:
    made = Dependencies.of(settings)
    yield made
    made.db.engine.dispose()


@pytest.fixture
def courier(dependencies, monkeypatch) -> HubPushCourier:
    monkeypatch.setattr("service.hub.lfs_upload._PAUSE_SECONDS", 0.0)
    return HubPushCourier(dependencies)


@pytest.fixture
def pushable(database, storage) -> Callable[..., str]:
    """Give a tenant an adapter of a task; its id. `size`: numbers of each matrix' side."""

    def make(tenant: Caller, size: int = 8, seed: int = 0) -> str:
        random = np.random.default_rng(seed)
        weights = {f"layer{n}.lora_A.weight": random.standard_normal((size, size)).astype("<f4") for n in range(2)}
        files = {"adapter_config.json": CONFIG, "adapter_model.safetensors": safetensors(weights)}
        with database.begin() as session:
            return adapter(session, storage, jobs_of(session, tenant.task()["id"])[0], files).id

    return make


@pytest.fixture
def due_now(database: Database) -> Callable[[], None]:
    """End all pauses, and all claims, of pushes."""

    def make() -> None:
        with database.begin() as session:
            now = clock(session)
            session.execute(update(HubPush).values(next_at=now, claimed_until=now))

    return make


@pytest.fixture
def logged(caplog: Any) -> Callable[[], str]:
    """All that was logged so far."""
    caplog.set_level(logging.DEBUG)
    return lambda: caplog.text
