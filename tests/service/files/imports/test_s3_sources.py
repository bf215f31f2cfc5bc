"""Data sets in a tenant's bucket: read with the request's keys, which nobody can see, or as anybody; not with the service's."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from motet import BucketAccess, Client
from sqlalchemy import text

from service.files.imports.actions import box_of
from service.files.imports.s3_object import S3Object
from service.files.imports.sources import status_refusal
from tests.service.api import chat_rows, jsonl
from tests.service.files.imports.named import ROWS, SOURCE, name, named, refused, seen
from tests.service.storage.object_servers import ObjectServer, object_server

KEYS = {"access_key_id": "TENANTKEY", "secret_access_key": "tenant-secret", "session_token": "tenant-session"}
SERVICE = {"AWS_ACCESS_KEY_ID": "SERVICEKEY", "AWS_SECRET_ACCESS_KEY": "service-secret", "AWS_SESSION_TOKEN": "service-session"}


@pytest.fixture(scope="module")
def moto(tmp_path_factory) -> Iterator[ObjectServer]:
    with object_server("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def bucket(moto, monkeypatch):
    """A bucket's client, and the service's own keys in the environment."""
    for variable, value in SERVICE.items():
        monkeypatch.setenv(variable, value)
    made = boto3.client("s3", endpoint_url=moto.url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    return made


@pytest.fixture
def kept(bucket, moto) -> Callable[..., str]:
    """Put an object; its source."""

    def put(key: str, content: bytes = ROWS, **more: str) -> str:
        bucket.put_object(Bucket=moto.bucket, Key=key, Body=content, **more)
        return f"s3://{moto.bucket}/{key}"

    return put


def test_an_object_is_imported_with_the_tenants_keys_which_nobody_can_read(
    tenant,
    importer,
    kept,
    moto,
    database,
    settings,
    caplog,
):
    caplog.set_level("DEBUG")
    source = kept("some folder/rows+1.jsonl")
    told = name(tenant, source, endpoint=moto.url, dry_run=True, **KEYS)
    assert told.status_code == 200, told.text
    assert (told.json()["bytes"], told.json()["source"], told.json()["name"]) == (len(ROWS), source, "rows+1.jsonl")
    made = named(tenant, source, endpoint=moto.url, **KEYS)
    assert (made["source"], made["status"], made["total_bytes"]) == (source, "importing", len(ROWS))
    with database.begin() as session:
        row, sealed = session.execute(
            text("SELECT f::text, sealed FROM file_imports f WHERE id = :id"), {"id": made["id"]}
        ).one()
    opened = json.loads(box_of(settings).open(sealed))
    assert opened["bucket"]["secret_access_key"] == KEYS["secret_access_key"]
    assert "X-Amz-Signature=" in opened["url"], "a process of the version before needs a URL that is signed"
    importer.work_off_due()
    ready = seen(tenant, made["id"])
    assert (ready["status"], ready["bytes"]) == ("ready", len(ROWS)), ready
    with database.begin() as session:
        assert session.scalar(text("SELECT sealed FROM file_imports WHERE id = :id"), {"id": made["id"]}) is None
    for secret in (*KEYS.values(), *SERVICE.values()):
        assert secret not in row
        assert secret not in caplog.text
        assert secret not in json.dumps([made, ready])


def test_the_client_and_the_command_line_send_keys(kept, moto, admin, server, tmp_path):
    source = kept("of-a-client.jsonl")
    with Client(server.url, admin.key) as client:
        bucket = BucketAccess("TENANTKEY", "tenant-secret", endpoint=moto.url)
        assert client.files.inspect(source, bucket=bucket).bytes == len(ROWS)
        assert client.files.add(source, bucket=bucket).total_bytes == len(ROWS)
    words = ("files", "add", source, "--with-keys", "--endpoint", moto.url, "--dry-run")
    command = [sys.executable, "-c", "from motet.cli import main; main()", *words]
    here = {"MOTET_API_URL": server.url, "MOTET_API_KEY": admin.key, "MOTET_STATE_DIR": str(tmp_path)}
    told = subprocess.run(command, env=os.environ | here, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert f"{source}: {len(ROWS):,} bytes" in told.stdout
    without = {name: value for name, value in os.environ.items() if name not in SERVICE}
    refused_ = subprocess.run(command, env=without | here, capture_output=True, text=True, check=False)
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not both set" in " ".join(refused_.stderr.split())


def test_anybody_reads_what_is_public_and_nothing_else(tenant, importer, kept, moto):
    private, public = kept("private.jsonl"), kept("public.jsonl", ACL="public-read")
    said = refused(name(tenant, private, endpoint=moto.url), "source", "source_refused")
    assert "403" in said
    assert "of a bucket the keys and what they may read" in said
    made = named(tenant, public, endpoint=moto.url)
    importer.work_off_due()
    assert seen(tenant, made["id"])["status"] == "ready"


def test_an_object_that_changes_meanwhile_is_refused(tenant, importer, kept, moto):
    made = named(tenant, kept("changing.jsonl"), endpoint=moto.url, **KEYS)
    kept("changing.jsonl", jsonl(*chat_rows(60))[::-1])
    importer.work_off_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "source_changed"


def test_a_version_is_imported_though_a_newer_one_came(tenant, importer, bucket, kept, moto):
    bucket.put_bucket_versioning(Bucket=moto.bucket, VersioningConfiguration={"Status": "Enabled"})
    first = bucket.put_object(Bucket=moto.bucket, Key="versioned.jsonl", Body=ROWS)["VersionId"]
    newer = jsonl(*chat_rows(5))
    source = kept("versioned.jsonl", newer)
    made = named(tenant, source, endpoint=moto.url, version_id=first, **KEYS)
    assert (made["total_bytes"], made["revision"]) == (len(ROWS), first)
    kept("versioned.jsonl", jsonl(*chat_rows(6)))
    importer.work_off_due()
    assert (seen(tenant, made["id"])["status"], seen(tenant, made["id"])["bytes"]) == ("ready", len(ROWS))


def test_what_is_not_there_is_refused_in_words(tenant, moto, kept):
    source = kept("empty.jsonl", b"")
    refused(name(tenant, source, endpoint=moto.url, **KEYS), "source", "empty_file")
    assert "404" in refused(name(tenant, source + ".not", endpoint=moto.url, **KEYS), "source", "source_refused")
    disguised = kept("disguised.jsonl", b"PAR1 and more")
    assert "is Parquet" in refused(name(tenant, disguised, endpoint=moto.url, **KEYS), "source", "format_not_taken")


def test_private_endpoints_are_not_called(serve, settings_for, new_database_url, tmp_path, moto, kept):
    caller = serve(settings_for(new_database_url, tmp_path))
    source = kept("inside.jsonl", ACL="public-read")
    for endpoint in (moto.url, "http://169.254.169.254", "https://[::1]:9000", "https://10.0.0.1/minio"):
        assert "not public" in refused(name(caller, source, endpoint=endpoint, **KEYS), "source", "source_not_called")


@pytest.mark.parametrize("endpoint", ["https://[x", "https://h:99999"])
def test_an_endpoint_that_is_no_url_is_refused_by_its_field(tenant, endpoint):
    answer = name(tenant, "s3://bucket/rows.jsonl", endpoint=endpoint, **KEYS)
    assert "is not a URL" in refused(answer, "endpoint", "not_a_url")


@pytest.mark.parametrize("field", ["token", "secret_access_key", "session_token"])
@pytest.mark.parametrize("secret", ["a secret", "s\u00e4cret", "secret\r\nHost: x", "sec\0ret", "secret\ud800"])
def test_credentials_that_no_header_takes_are_refused_by_their_field(tenant, hub, field, secret):
    before = len(hub.requests)
    of_bucket = field != "token"
    said = (KEYS if of_bucket else {}) | {field: secret}
    answer = tenant.post(
        "/v1/files",
        content=json.dumps({"source": "s3://bucket/rows.jsonl" if of_bucket else SOURCE} | said),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field
    assert secret not in answer.text
    assert len(hub.requests) == before


def test_a_bucket_elsewhere_is_told_by_its_region():
    said = status_refusal(301, "bucket.s3.us-east-1.amazonaws.com", {"x-amz-bucket-region": "eu-west-1"})
    assert "send `region`: eu-west-1" in str(said.errors)


@pytest.mark.parametrize(
    "object_",
    [
        S3Object("bucket", "rows.jsonl", access_key_id="k", secret_access_key="s"),
        S3Object("bucket", "ä ö/rows +&=~.jsonl", region="eu-west-1", access_key_id="k", secret_access_key="s/+="),
        S3Object("with.dots", "rows.jsonl", version="a/b+c=", access_key_id="k", secret_access_key="s", session_token="t/+=="),
        S3Object("bucket", "a/b.jsonl", endpoint="https://MinIO.example:9000/under/", access_key_id="k", secret_access_key="s"),
    ],
    ids=["plain", "letters", "version and session", "endpoint"],
)
def test_a_url_is_signed_as_botocore_signs_it(object_, monkeypatch):
    moment = datetime(2026, 11, 24, 12, 30, tzinfo=UTC)
    signed = urlsplit(object_.url(600, moment))
    plain = f"{signed.scheme}://{signed.netloc}{signed.path}"
    said = {"versionId": object_.version} if object_.version else {}
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: moment.replace(tzinfo=None), raising=True)
    request = AWSRequest("GET", plain, params=said)
    credentials = Credentials(object_.access_key_id, object_.secret_access_key, object_.session_token or None)
    S3SigV4QueryAuth(credentials, "s3", object_.region, expires=600).add_auth(request)
    theirs = urlsplit(request.prepare().url)
    assert parse_qs(signed.query) == parse_qs(theirs.query)
    assert (signed.netloc, signed.path) == (theirs.netloc, theirs.path)


def test_keys_are_in_no_representation() -> None:
    said = repr(S3Object("bucket", "rows.jsonl", access_key_id="k", secret_access_key="hidden", session_token="too"))
    assert "hidden" not in said
    assert "too" not in said
