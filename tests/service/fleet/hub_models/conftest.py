"""A hub with one base, and how tests ask for one of its bases."""

import json
from collections.abc import Iterator

import pytest

from tests.hub.hub_fixtures import NAME, hub, settings
from tests.service.api import Caller
from tests.service.fleet.test_model_catalog import CONFIG, TEMPLATE, weights

__all__ = ["hub", "settings"]

FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "chat_template.jinja": TEMPLATE.encode(),
    "model.safetensors": weights((2, 3), (5,)),
}


@pytest.fixture(autouse=True)
def working(hub) -> Iterator[None]:
    yield
    hub.faults()


def add(admin: Caller, name: str = NAME, **more: object):
    return admin.post("/v1/models", json={"source": f"hf://{name}", **more})
