"""Data sets by URL, through the guard of outbound calls."""

import pytest
from sqlalchemy import text

from tests.service.files.imports.named import NAME, ROWS, SOURCE, name, named, refused, seen


def test_a_url_is_imported_and_its_query_is_nobodys(tenant, importer, by_url, hub, database):
    made = named(tenant, by_url(query="?signature=secret"), name="mine.jsonl")
    assert (made["source"], made["name"], made["commit"]) == (by_url(), "mine.jsonl", None)
    with database.begin() as session:
        row = session.execute(text("SELECT f::text FROM file_imports f WHERE id = :id"), {"id": made["id"]}).scalar_one()
    assert "secret" not in row
    importer.work_off_due()
    assert seen(tenant, made["id"])["status"] == "ready"
    assert "?signature=secret" in hub.requests[-1][0]


def test_a_url_that_changes_meanwhile_is_refused(tenant, importer, hub, by_url):
    (hub.folder / "plain" / "changing.jsonl").write_bytes(ROWS)
    made = named(tenant, by_url("changing.jsonl"))
    (hub.folder / "plain" / "changing.jsonl").write_bytes(ROWS[::-1])
    importer.work_off_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "source_changed"


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "https://10.0.0.1/x", "http://[fe80::1]/x"])
def test_a_redirect_inside_is_refused_in_both_phases(tenant, importer, hub, by_url, target):
    made, of_hub = named(tenant, by_url()), named(tenant, split="train")
    hub.faults(redirect=target)
    assert "not public" in refused(name(tenant, by_url()), "source", "source_not_called")
    assert "MOTET_HUB_NETWORKS" in refused(name(tenant, split="train"), "source", "hub_redirects")
    importer.work_off_due()
    for one in (made, of_hub):
        assert seen(tenant, one["id"])["error"]["errors"][0]["code"] == "source_not_called"


def test_what_is_no_url_is_refused_in_both_phases(tenant, importer, hub, by_url):
    made = named(tenant, by_url())
    assert "is not a URL" in refused(name(tenant, "https://[x/rows.jsonl"), "source", "not_a_url")
    hub.faults(redirect="https://h:99999/")
    assert "is not a URL" in refused(name(tenant, by_url()), "source", "source_not_called")
    importer.work_off_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "source_not_called"


def test_private_addresses_are_not_called_unless_allowed(hub, serve, settings_for, new_database_url, tmp_path, by_url):
    caller = serve(settings_for(new_database_url, tmp_path, hf_endpoint=hub.url))
    before = len(hub.requests)
    for url in (by_url(), hub.other_origin + "/plain/rows.jsonl", "https://169.254.169.254/latest", "https://[::1]/x"):
        assert "not public" in refused(name(caller, url), "source", "source_not_called")
    assert len(hub.requests) == before
    hub.faults(redirect=f"{hub.url}/cdn/{NAME}/data/train.jsonl")  # HF_ENDPOINT itself is the operator's choice
    assert name(caller, SOURCE, split="train", dry_run=True).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"), [({"Content-Encoding": "gzip"}, "encoded"), ({"Content-Encoding": "br"}, "encoded")]
)
def test_what_is_not_sent_as_it_is_is_refused(tenant, hub, by_url, headers, code):
    hub.faults(headers=headers)
    refused(name(tenant, by_url()), "source", code)
