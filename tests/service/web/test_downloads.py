"""Downloads by a click on a service with a transfer port: the browser follows to the other port, and keeps the file's name."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.service.api import Caller, jsonl
from tests.service.storage.transfer_server import by_a_port, transferring


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, free_port):
    made = settings_for(database_url, tmp_path_factory.mktemp("service"), **by_a_port(free_port()))
    with transferring(made):
        yield made


def test_a_file_comes_from_the_transfer_port_under_its_own_name(visit, tenant: Caller, settings) -> None:
    rows = jsonl({"prompt": "a", "completion": "b"})
    tenant.upload(rows, "Zürich.jsonl")
    visitor = visit(accept_downloads=True)
    visitor.sign_in(tenant.key)
    page = visitor.open("/files")
    with page.expect_download() as download:
        page.click("text=Download")
    assert Path(download.value.path()).read_bytes() == rows
    assert download.value.suggested_filename == "Zürich.jsonl"
    visitor.expected("/transfers/objects/")
    assert urlsplit(page.url).path == "/files", "the page stays"
