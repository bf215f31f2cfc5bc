"""A hub with one base, what copies it into storage, and how tests ask for that."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta

import pytest

from contract.compatibility.capabilities import understood
from service.database import claimed_rows
from service.fleet.base_models.copies.base_copier import BaseCopier
from tests.hub.hub_fixtures import NAME, hub, settings
from tests.hub.hub_process import MODEL, HubProcess
from tests.service.fleet.scripted import ScriptedNode

__all__ = ["hub", "settings"]


@pytest.fixture(autouse=True)
def anew(hub, admin, storage, monkeypatch, nothing_left) -> Iterator[None]:
    """Each test begins without the base, and with a hub that works; no time for another try comes by itself."""
    monkeypatch.setattr(claimed_rows, "WAITS", (timedelta(hours=3),) * len(claimed_rows.WAITS))
    monkeypatch.setattr("service.files.imports.download._PAUSE_SECONDS", 0.0)
    assert admin.delete(f"/v1/admin/models/{NAME}").status_code in (204, 404)
    for stored in list(storage.keys()):
        storage.delete(stored.sha256)
    yield
    hub.faults()


@pytest.fixture
def copier(dependencies) -> BaseCopier:
    return BaseCopier(dependencies.db, dependencies.storage, dependencies.settings)


def add(admin, **more: object) -> dict[str, object]:
    made = admin.post("/v1/models", json={"source": f"hf://{NAME}", **more})
    assert made.status_code == 201, made.text
    return made.json()


def copy_of(admin) -> dict[str, object] | None:
    return admin.get(f"/v1/models/{NAME}").json()["storage"]


def sha256_of(name: str) -> str:
    return hashlib.sha256((MODEL / name).read_bytes()).hexdigest()


def stored(admin, copier) -> None:
    assert add(admin, store=True)["storage"]["status"] == "copying"
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"


def weights_asked(hub: HubProcess) -> list[str]:
    """The range of each request for the bytes of the weights, but those for their header."""
    asked = [line[1] for line in hub.requests if line[0].startswith("/cdn/") and line[0].endswith("model.safetensors")]
    return [range_ for range_ in asked if range_ != "bytes=0-131071"]


def able(new_node, *without: str) -> ScriptedNode:
    return new_node(said={"capabilities": sorted(understood() - set(without))})
