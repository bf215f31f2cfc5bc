"""What a bucket is told and asked for: encryption of every object, and the lifecycle rules that operators give it."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from service.storage import bucket_storage
from service.storage.bucket import PART
from tests.service.live_server import PATIENCE
from tests.service.storage.object_servers import CREDENTIALS, ObjectServer
from tests.service.storage.transfer_server import HERE

RULES = Path(__file__).parents[3] / "deploy" / "examples" / "bucket_lifecycle.json"
KMS = {"storage_encryption": "aws:kms", "storage_kms_key": "the-key-of-the-tests"}


def client_of(server: ObjectServer) -> Any:
    names = {name.lower(): value for name, value in CREDENTIALS.items()}
    return boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **names)


def encryption_below(server: ObjectServer, prefix: str) -> dict[str, tuple[str | None, str | None]]:
    client, found = client_of(server), {}
    for entry in client.list_objects_v2(Bucket=server.bucket, Prefix=prefix).get("Contents", []):
        head = client.head_object(Bucket=server.bucket, Key=entry["Key"])
        found[entry["Key"].rpartition("/")[2]] = (head.get("ServerSideEncryption"), head.get("SSEKMSKeyId"))
    return found


@pytest.mark.parametrize("whole", [True, False], ids=["copied-by-the-bucket", "written-again"])
def test_every_object_is_encrypted_however_it_came(storage_with, moto, tmp_path, monkeypatch, whole):
    """Small and in parts, from a tenant, from the service, and by a worker's presigned URL, which names no encryption."""
    monkeypatch.setattr(bucket_storage, "COPY_BYTES", 2**30 if whole else PART)
    prefix = f"encrypted/{tmp_path.name}"
    storage = storage_with(**moto.settings(prefix=prefix, **KMS))
    expected = set()
    for size in (100, 2 * PART + 100):
        received = storage.receive()
        received.write(os.urandom(size))
        expected.add(received.commit().sha256)
        content = os.urandom(size)
        sha256 = hashlib.sha256(content).hexdigest()
        expected.add(storage.put(io.BytesIO(content), sha256, size).sha256)
        content = os.urandom(size)
        sha256 = hashlib.sha256(content).hexdigest()
        grant = storage.grant_upload(sha256, size, direct=HERE)
        assert httpx.put(grant.parts[0].url, content=content, timeout=PATIENCE).status_code == 200
        token = grant.complete.removeprefix("/internal/v1/objects/").removesuffix("/complete")
        storage.complete_upload(token, sha256, size)
        expected.add(sha256)
    assert storage.presign_derived("an-archive", "application/gzip", lambda: [b"x" * PART, b"y"], HERE) is not None
    expected.add("an-archive")
    found = encryption_below(moto, f"{prefix}/objects/") | encryption_below(moto, f"{prefix}/derived/")
    assert found == dict.fromkeys(expected, ("aws:kms", "the-key-of-the-tests"))


def test_a_bucket_takes_the_lifecycle_rules_of_the_docs(moto):
    """They end what killed processes leave, and old versions of what was deleted; nothing that is kept expires."""
    rules = json.loads(RULES.read_text())
    client = client_of(moto)
    client.put_bucket_lifecycle_configuration(Bucket=moto.bucket, LifecycleConfiguration=rules)
    kept = client.get_bucket_lifecycle_configuration(Bucket=moto.bucket)["Rules"]
    by_id = {rule["ID"]: rule for rule in kept}
    assert by_id.keys() == {rule["ID"] for rule in rules["Rules"]}
    assert all(rule["Status"] == "Enabled" and not rule["Filter"].get("Prefix") for rule in kept)
    assert [rule["AbortIncompleteMultipartUpload"] for rule in kept if "AbortIncompleteMultipartUpload" in rule] == [
        {"DaysAfterInitiation": 1}
    ]
    assert [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in kept if "NoncurrentVersionExpiration" in rule
    ] == [1]
    assert not any({"Days", "Date"} & rule.get("Expiration", {}).keys() for rule in kept)
