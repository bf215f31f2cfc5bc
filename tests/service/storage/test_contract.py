"""What every storage promises, held to over a folder and over buckets of two servers: whole, verified, or not there."""

import hashlib
import io
import os
import threading
import time
from dataclasses import replace

import httpx
import pytest

from service.storage.object_store import DERIVED_SECONDS, ObjectMismatch, ObjectMissing
from service.storage.upload_grants import GRANT_SECONDS
from tests.service.live_server import PATIENCE
from tests.service.storage.transfer_server import HERE

SMALL = b"some bytes"
LARGE = os.urandom(2**20) * 17  # several parts of a multipart upload
OTHER = LARGE[:-1] + bytes([LARGE[-1] ^ 1])


def sha_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(kept, data: bytes) -> str:
    kept.put(io.BytesIO(data), sha_of(data), len(data))
    return sha_of(data)


def received(kept, data: bytes):
    incoming = kept.receive()
    for start in range(0, len(data), 2**20):
        incoming.write(data[start : start + 2**20])
    return incoming


def later(monkeypatch, seconds: float) -> None:
    """Let the clock be ahead from now on."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
@pytest.mark.parametrize("way", ["put", "received"])
def test_what_was_stored_is_there_and_read_by_range(kept, data, way):
    if way == "put":
        put(kept, data)
    else:
        assert received(kept, data).commit().sha256 == sha_of(data)
    sha256 = sha_of(data)
    assert (kept.exists(sha256), kept.size(sha256)) == (True, len(data))
    with kept.open(sha256) as source:
        assert source.read() == data
        source.seek(max(0, len(data) - 7))
        assert source.read(3) == data[-7:][:3]
    assert [(one.sha256, one.bytes) for one in kept.keys()] == [(sha256, len(data))]  # noqa: SIM118  (no mapping)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("wrong", ["sha256", "more", "less"])
def test_bytes_that_are_not_as_announced_are_not_kept(kept, data, wrong):
    sha256 = sha_of(b"other") if wrong == "sha256" else sha_of(data)
    size = len(data) + {"sha256": 0, "more": 1, "less": -1}[wrong]
    with pytest.raises(ObjectMismatch):
        kept.put(io.BytesIO(data), sha256, size)
    with pytest.raises(ObjectMismatch, match=f"got {len(data)} bytes, sha256 {sha_of(data)}"):
        received(kept, data).commit(sha256, size)
    assert list(kept.keys()) == []
    assert kept.sweep_incoming() == 0


def test_nothing_is_seen_before_it_is_whole_nor_after_it_was_abandoned(kept):
    incoming = received(kept, LARGE)
    assert not kept.exists(sha_of(LARGE))
    incoming.abandon()
    incoming.abandon()
    assert (kept.exists(sha_of(LARGE)), list(kept.keys())) == (False, [])


def test_what_is_missing_says_so(kept):
    for ask in (kept.open, kept.size):
        with pytest.raises(ObjectMissing, match=sha_of(SMALL)):
            ask(sha_of(SMALL))
    assert (kept.exists(sha_of(SMALL)), kept.delete(sha_of(SMALL))) == (False, False)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_a_key_is_a_sha256_and_never_a_path(kept, key):
    with pytest.raises(ValueError, match="not a sha256"):
        kept.open(key)


def test_only_what_is_old_enough_is_removed(kept, monkeypatch):
    sha256 = put(kept, SMALL)
    assert not kept.delete(sha256, older_than=60)
    later(monkeypatch, 3600)
    assert not kept.delete(sha256, older_than=7200)
    assert kept.delete(sha256, older_than=60)
    assert not kept.exists(sha256)


def test_a_grant_spares_an_object_that_is_old(bucket, monkeypatch):
    sha256, keys, find = put(bucket, SMALL), bucket._bucket, bucket._bucket.find

    def aged(key: str):
        found = find(key)
        return replace(found, age=found.age + 7200) if key.startswith("objects/") else found

    monkeypatch.setattr(keys, "find", aged)
    keys.delete(f"touched/{sha256}")  # which its upload wrote
    assert bucket.grant_upload(sha256, len(SMALL), direct=HERE).exists
    assert not bucket.delete(sha256, older_than=3600)
    keys.delete(f"touched/{sha256}")
    assert bucket.delete(sha256, older_than=3600)


def test_many_objects_are_listed_by_pages(kept):
    stored = {put(kept, f"object {n}".encode()) for n in range(40)}
    assert {one.sha256 for one in kept.keys()} == stored  # noqa: SIM118
    assert all(one.age < 3600 for one in kept.keys())  # noqa: SIM118


def test_writers_at_once_of_one_object_all_succeed(kept):
    threads = [threading.Thread(target=put, args=(kept, LARGE)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.bytes for one in kept.keys()] == [len(LARGE)]  # noqa: SIM118


def test_the_check_leaves_nothing(kept):
    kept.check()
    assert list(kept.keys()) == []


def uploaded(grant, data: bytes) -> None:
    for part in grant.parts:
        answer = httpx.put(part.url, content=data[part.offset : part.offset + part.bytes], timeout=PATIENCE)
        assert answer.status_code == 200, answer.text


def token_of(grant) -> str:
    return grant.complete.split("/")[-2]


@pytest.mark.parametrize("part_bytes", [2**30, 8 * 2**20], ids=["whole", "in parts"])
def test_presigned_uploads_are_verified_when_they_are_complete(bucket, monkeypatch, part_bytes):
    monkeypatch.setattr("service.storage.bucket_storage.PART_BYTES", part_bytes)
    sha256 = sha_of(LARGE)
    grant = bucket.grant_upload(sha256, len(LARGE), direct=HERE)
    assert (grant.exists, grant.url, len(grant.parts)) == (False, None, -(-len(LARGE) // part_bytes))
    with pytest.raises(ObjectMismatch):
        bucket.complete_upload(token_of(grant), sha256, len(LARGE))
    uploaded(grant, OTHER)
    with pytest.raises(ObjectMismatch):
        bucket.complete_upload(token_of(grant), sha256, len(LARGE))
    assert not bucket.exists(sha256)
    uploaded(grant, LARGE)
    assert not bucket.exists(sha256), "nothing is kept before it is verified"
    for _ in range(2):  # the answer to the first one may have been lost
        bucket.complete_upload(token_of(grant), sha256, len(LARGE))
    with bucket.open(sha256) as source:
        assert source.read() == LARGE
    uploaded(grant, OTHER)  # the URLs still work, and reach nothing that was kept
    with bucket.open(sha256) as source:
        assert source.read() == LARGE
    assert bucket.grant_upload(sha256, len(LARGE), direct=HERE).exists


def test_what_a_dead_uploader_left_is_swept_after_a_day(bucket, monkeypatch):
    uploaded(bucket.grant_upload(sha_of(LARGE), len(LARGE), direct=HERE), LARGE)
    assert bucket.sweep_incoming() == 0
    later(monkeypatch, 25 * 3600)
    assert bucket.sweep_incoming() == 1
    assert bucket.sweep_incoming() == 0


def test_a_presigned_download_is_of_one_object_and_ends(storage_with, moto, tmp_path):
    bucket = storage_with(**moto.settings(prefix=tmp_path.name, storage_url_seconds=600))
    sha256, other = put(bucket, SMALL), put(bucket, b"other")
    url = bucket.presign(sha256, "rows.jsonl", "application/jsonl", HERE)
    assert httpx.get(url, timeout=PATIENCE).content == SMALL
    assert httpx.get(url, headers={"Range": "bytes=2-4"}, timeout=PATIENCE).content == SMALL[2:5]
    assert "X-Amz-Expires=600" in url
    assert sha256 in url
    assert other not in url
    assert f"X-Amz-Expires={GRANT_SECONDS}" in bucket.grant_upload("0" * 64, 1, direct=HERE).parts[0].url


def test_a_link_to_an_archive_ends_before_the_archive_does(storage_with, moto, tmp_path):
    bucket = storage_with(**moto.settings(prefix=tmp_path.name, storage_url_seconds=7200))
    url = bucket.presign_derived("e/adapter.tar.gz", "application/gzip", lambda: [b"archive"], HERE)
    assert f"X-Amz-Expires={DERIVED_SECONDS / 2:.0f}" in url
    assert "X-Amz-Expires=7200" in bucket.presign(put(bucket, SMALL), "rows.jsonl", "application/jsonl", HERE)


def test_a_presigned_download_has_ranges_and_a_type(presigning):
    sha256 = put(presigning, LARGE)
    url = presigning.presign(sha256, "rows.jsonl", "application/jsonl", HERE)
    assert httpx.get(url, timeout=PATIENCE).content == LARGE
    part = httpx.get(url, headers={"Range": f"bytes={len(LARGE) - 5}-"}, timeout=PATIENCE)
    assert (part.status_code, part.content) == (206, LARGE[-5:])
    assert httpx.get(url, headers={"Range": f"bytes={len(LARGE)}-"}, timeout=PATIENCE).status_code == 416


def test_an_archive_is_made_once_and_goes_after_an_hour(presigning, monkeypatch):
    made = []

    def blocks():
        made.append(1)
        yield b"one "
        yield b"archive"

    urls = [presigning.presign_derived("e/adapter.tar.gz", "application/gzip", blocks, HERE) for _ in range(2)]
    assert [httpx.get(url, timeout=PATIENCE).content for url in urls] == [b"one archive"] * 2
    assert len(made) == 1
    later(monkeypatch, 3700)
    presigning.sweep_incoming()
    monkeypatch.undo()
    assert httpx.get(urls[0], timeout=PATIENCE).status_code == 404


def test_objects_beyond_what_a_bucket_copies_are_written_anew(bucket, monkeypatch):
    monkeypatch.setattr("service.storage.bucket_storage.COPY_BYTES", 2**20)
    received(bucket, LARGE).commit()
    with bucket.open(sha_of(LARGE)) as source:
        assert source.read() == LARGE
    other = LARGE[::-1]
    grant = bucket.grant_upload(sha_of(other), len(other), direct=HERE)
    uploaded(grant, other)
    bucket.complete_upload(token_of(grant), sha_of(other), len(other))
    assert bucket.size(sha_of(other)) == len(other)
