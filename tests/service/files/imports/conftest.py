"""A hub on loopback, and an importer that runs when it is told to."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import delete

from service.database import claimed_rows
from service.dependencies import Dependencies
from service.files.imports.importer import Importer
from service.files.models import FileImport
from tests.hub.hub_process import HubProcess, hub_process
from tests.service.api import chat_rows, jsonl
from tests.service.files.imports.named import LOOPBACK, NAME, ROWS


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        found.add(NAME, {"data/train.jsonl": ROWS, "README.md": b"# rows\n", "small/test.jsonl": jsonl(*chat_rows(3))})
        (found.folder / "plain").mkdir()
        (found.folder / "plain" / "rows.jsonl").write_bytes(ROWS)
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    folder = tmp_path_factory.mktemp("service")
    return settings_for(database_url, folder, hf_endpoint=hub.url, import_networks=LOOPBACK, max_file_bytes=100_000)


@pytest.fixture(autouse=True)
def long_waits(monkeypatch) -> None:
    """No time for another try comes by itself, however slow a test is."""
    monkeypatch.setattr(claimed_rows, "WAITS", (timedelta(hours=3),) * len(claimed_rows.WAITS))


@pytest.fixture(autouse=True)
def working(hub, database) -> Iterator[None]:
    yield
    hub.faults()
    with database.begin() as session:
        session.execute(delete(FileImport).where(FileImport.status == "importing"))


@pytest.fixture
def dependencies(settings) -> Iterator[Dependencies]:
    made = Dependencies.of(settings)
    yield made
    made.db.engine.dispose()


@pytest.fixture
def importer(dependencies) -> Importer:
    return Importer(dependencies)


@pytest.fixture
def by_url(hub, monkeypatch):
    """The plain file's URL as https:// to the API and http:// on the wire, since the test's server has no certificate."""

    def url(path: str = "rows.jsonl", query: str = "") -> str:
        return f"{hub.url}/plain/{path}{query}"

    monkeypatch.setattr("service.files.imports.sources.BY_URL", ("http://", "https://"))
    return url


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("service.files.imports.download._PAUSE_SECONDS", 0.0)
