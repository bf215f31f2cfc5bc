"""Local storage: objects are whole and right, or not there; what is put or granted is safe from the collector."""

import hashlib
import io
import os
import time

import pytest

from service.storage.local_storage import LocalStorage
from service.storage.object_store import ObjectMismatch, ObjectMissing
from service.storage.upload_grants import GrantRefused, UploadGrants

DATA = b"some bytes"
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def grants():
    return UploadGrants("s" * 32)


@pytest.fixture
def storage(tmp_path, grants):
    return LocalStorage(tmp_path / "storage", grants)


def put(storage: LocalStorage, data: bytes = DATA) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    storage.put(io.BytesIO(data), sha256, len(data))
    return sha256


def grow_old(storage: LocalStorage, sha256: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(storage.path(sha256), (then, then))


def test_what_was_put_is_there(storage):
    assert put(storage) == SHA
    assert storage.exists(SHA)
    assert storage.size(SHA) == len(DATA)
    assert storage.open(SHA).read() == DATA
    only = next(storage.keys())
    assert (only.sha256, only.bytes) == (SHA, len(DATA))


@pytest.mark.parametrize(("sha256", "size"), [("0" * 64, len(DATA)), (SHA, 1), (SHA, len(DATA) + 1)])
def test_bytes_that_are_not_as_announced_are_not_kept(storage, tmp_path, sha256, size):
    with pytest.raises(ObjectMismatch, match=f"got {len(DATA)} bytes, sha256 {SHA}"):
        storage.put(io.BytesIO(DATA), sha256, size)
    assert list(storage.keys()) == list((tmp_path / "storage" / "incoming").iterdir()) == []


def test_nothing_is_seen_before_it_is_whole(storage):
    incoming = storage.receive()
    incoming.write(DATA)
    assert not storage.exists(SHA)
    assert incoming.commit().sha256 == SHA
    incoming.abandon()
    assert storage.exists(SHA)


def test_a_missing_object_says_so(storage):
    for ask in (storage.open, storage.size):
        with pytest.raises(ObjectMissing, match=SHA):
            ask(SHA)
    assert not storage.delete(SHA)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_a_key_is_a_sha256_and_never_a_path(storage, key):
    with pytest.raises(ValueError, match="not a sha256"):
        storage.open(key)


def test_putting_it_again_mends_a_damaged_object(storage):
    put(storage)
    storage.path(SHA).write_bytes(b"rotten")
    put(storage)
    assert storage.open(SHA).read() == DATA


def test_only_what_is_old_enough_is_collected(storage):
    put(storage)
    assert not storage.delete(SHA, older_than=60)
    grow_old(storage, SHA, 100)
    assert storage.delete(SHA, older_than=60)
    assert not storage.exists(SHA)


def test_a_grant_and_another_put_make_an_object_young_again(storage):
    put(storage)
    grow_old(storage, SHA, 100)
    assert storage.grant_upload(SHA, len(DATA)).exists
    assert not storage.delete(SHA, older_than=60)
    grow_old(storage, SHA, 100)
    put(storage)
    assert not storage.delete(SHA, older_than=60)


def test_a_reader_keeps_what_is_deleted_under_it(storage):
    put(storage)
    with storage.open(SHA) as source:
        storage.delete(SHA)
        assert source.read() == DATA


def test_half_written_files_of_the_dead_are_swept(storage, tmp_path):
    for age in (0, 48 * 3600):
        path = tmp_path / "storage" / "incoming" / f"of {age}"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert storage.sweep_incoming() == 1
    assert [path.name for path in (tmp_path / "storage" / "incoming").iterdir()] == ["of 0"]


def test_a_grant_names_these_bytes_and_no_others(storage, grants):
    grant = storage.grant_upload(SHA, len(DATA))
    assert not grant.exists
    token = grant.url.removeprefix("/internal/v1/objects/")
    granted = grants.verify(token)
    assert (granted.sha256, granted.size) == (SHA, len(DATA))
    other = token.replace(SHA, "0" * 64)
    for forged in (other, token[:-1], "", "a.b.c.d", token + "é"):
        with pytest.raises(GrantRefused, match="not signed"):
            grants.verify(forged)
    with pytest.raises(GrantRefused, match="not signed"):
        UploadGrants("t" * 32).verify(token)


def test_a_grant_ends(grants, monkeypatch):
    token = grants.sign(SHA, 1)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    with pytest.raises(GrantRefused, match="expired"):
        grants.verify(token)
