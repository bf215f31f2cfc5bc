"""Links to the transfer port: what they open, for how long, and under which address."""

import base64
import json
import time

import pytest

from service.storage.object_store import DERIVED_SECONDS, Caller
from service.storage.transfer_links import Linked, LinkRefused, TransferLinks
from service.storage.upload_grants import GrantRefused, UploadGrants

SECRET, SHA = "s" * 32, "a" * 64
OBJECT = Linked("object", SHA, "Zürich & co.jsonl", "application/jsonl")
TENANT, WORKER = Caller("http", "motet.example"), Caller("http", "api", worker=True)


@pytest.fixture
def links() -> TransferLinks:
    return TransferLinks(SECRET, 8323, "http://motet.example:8323", 300)


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_link_opens_what_it_was_made_for(links):
    archive = Linked("derived", f"{SHA}/adapter_1.tar.gz", "adapter_1.tar.gz", "application/gzip")
    for linked in (OBJECT, archive):
        assert links.read(token_of(links.download(linked, TENANT))) == linked


def test_a_link_that_was_not_signed_so_is_refused(links):
    token = token_of(links.download(OBJECT, TENANT))
    said, _, signature = token.rpartition(".")
    fields = json.loads(base64.urlsafe_b64decode(said))
    other, later, path = (
        base64.urlsafe_b64encode(json.dumps(fields | change).encode()).decode()
        for change in ({"name": "b" * 64}, {"until": fields["until"] + 1}, {"name": "../../etc/passwd"})
    )
    forged = [f"{one}.{signature}" for one in (other, later, path)]
    for one in (*forged, token[:-1], token[1:], said, f"{said}.", "", ".", "a.b.c", "../../etc/passwd", f"{token}é"):
        with pytest.raises(LinkRefused, match="not signed"):
            links.read(one)
    with pytest.raises(LinkRefused, match="not signed"):
        TransferLinks("t" * 32, 8323, None, 300).read(token)


def test_a_link_ends(links, monkeypatch):
    token, now = token_of(links.download(OBJECT, TENANT)), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 299)
    assert links.read(token) == OBJECT
    monkeypatch.setattr(time, "time", lambda: now + 301)
    with pytest.raises(LinkRefused, match="expired"):
        links.read(token)


def test_a_link_to_an_archive_ends_before_the_archive_does(monkeypatch):
    links, now = TransferLinks(SECRET, 8323, "http://motet.example:8323", 7 * 86400), time.time()
    archive = Linked("derived", f"{SHA}/adapter_1.tar.gz", "adapter_1.tar.gz", "application/gzip")
    tokens = [token_of(links.download(one, TENANT)) for one in (archive, OBJECT)]
    monkeypatch.setattr(time, "time", lambda: now + DERIVED_SECONDS / 2 + 60)
    with pytest.raises(LinkRefused, match="expired"):
        links.read(tokens[0])
    assert links.read(tokens[1]) == OBJECT


def test_a_download_is_no_upload_and_the_other_way_round(links):
    grants = UploadGrants(SECRET)
    with pytest.raises(GrantRefused):
        grants.verify(token_of(links.download(OBJECT, TENANT)))
    with pytest.raises(LinkRefused):
        links.read(grants.sign(SHA, 5))


@pytest.mark.parametrize(
    ("url", "caller", "base"),
    [
        ("https://motet.example/", TENANT, "https://motet.example"),
        ("https://motet.example", WORKER, "http://api:8323"),
        ("https://files.example", Caller("https", "motet.example", worker=True), "https://files.example"),
        ("http://files.example:9000", Caller("https", "motet.example"), "http://files.example:9000"),
        (None, WORKER, "http://api:8323"),
        (None, Caller("http", "::1", worker=True), "http://[::1]:8323"),
        # the API sends what it knows no address for: nothing says that a proxy or a tunnel has this port
        (None, TENANT, None),
        (None, Caller("https", "motet.example", worker=True), None),
    ],
)
def test_a_link_names_the_address_by_which_its_caller_comes(url, caller, base):
    links = TransferLinks(SECRET, 8323, url, 300)
    upload, download = links.upload("token", caller), links.download(OBJECT, caller)
    assert upload == (base and f"{base}/transfers/uploads/token")
    assert (download and download.rpartition("/")[0]) == (base and f"{base}/transfers/objects")
