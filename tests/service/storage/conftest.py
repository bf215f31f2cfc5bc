"""Storage of every kind, made by the settings as a service's own: a folder, and buckets of two servers that speak S3."""

from collections.abc import Callable, Iterator

import pytest

from service.database.engine import Database
from service.storage.connect import storage_of
from service.storage.object_store import Storage
from tests.service.storage.object_servers import CREDENTIALS, KINDS, ObjectServer, object_server
from tests.service.storage.transfer_server import by_a_port, transferring


@pytest.fixture(scope="session")
def moto(tmp_path_factory) -> Iterator[ObjectServer]:
    with object_server("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def localbucket(tmp_path_factory) -> Iterator[ObjectServer]:
    with object_server("localbucket", tmp_path_factory.mktemp("localbucket")) as server:
        yield server


@pytest.fixture
def credentials(monkeypatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def storage_with(database, settings_for, database_url, tmp_path, credentials) -> Callable[..., Storage]:
    """Make storage with these settings."""

    def make(**changes: object) -> Storage:
        return storage_of(settings_for(database_url, tmp_path, **changes), Database(database_url, pool_size=2))

    return make


@pytest.fixture(params=["folder", *KINDS])
def kept(request, storage_with, tmp_path) -> Storage:
    """Empty storage of each kind."""
    if request.param == "folder":
        return storage_with()
    server: ObjectServer = request.getfixturevalue(request.param)
    return storage_with(**server.settings(prefix=tmp_path.name))


@pytest.fixture(params=["folder", *KINDS])
def presigning(request, settings_for, database_url, tmp_path, free_port) -> Iterator[Storage]:
    """Empty storage of each kind that gives presigned URLs: a folder has a transfer port for them."""
    if request.param != "folder":
        yield request.getfixturevalue("storage_with")(**request.getfixturevalue(request.param).settings(prefix=tmp_path.name))
        return
    settings = settings_for(database_url, tmp_path, **by_a_port(free_port()))
    with transferring(settings):
        yield storage_of(settings, Database(database_url, pool_size=1))


@pytest.fixture(params=KINDS)
def bucket(request, storage_with, tmp_path) -> Storage:
    """Empty storage in a bucket of each server."""
    return storage_with(**request.getfixturevalue(request.param).settings(prefix=tmp_path.name))
