"""A hub with one base, and how tests ask for one of its bases."""

import json
from collections.abc import Iterator

import pytest

from tests.hub.hub_process import HubProcess, hub_process
from tests.service.api import Caller
from tests.service.fleet.test_model_catalog import CONFIG, weights

NAME = "org/example"
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": weights((2, 3), (5,)),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        found.add(NAME)
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), hf_endpoint=hub.url)


@pytest.fixture(autouse=True)
def working(hub) -> Iterator[None]:
    yield
    hub.faults()


def add(admin: Caller, name: str = NAME, **more: object):
    return admin.post("/v1/models", json={"source": f"hf://{name}", **more})
