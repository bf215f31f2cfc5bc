"""A hub with one base, and a service that fetches from it."""

from collections.abc import Iterator

import pytest

from tests.hub.hub_process import HubProcess, hub_process

NAME = "org/example"


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        found.add(NAME)
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), hf_endpoint=hub.url)
