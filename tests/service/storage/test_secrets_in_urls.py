"""What a storage's URL may hold of secrets, its user part and its query, is repeated nowhere."""

import logging

import pytest

from service.settings import SettingsError
from service.storage.bucket import Bucket
from service.storage.object_store import StorageRefused
from service.storage.storage_move import move

KEY = "sEcReT"


URLS = f"az://container/prefix?sig={KEY}", f"az://account:{KEY}@container/prefix", f"s3://id:{KEY[:2]}/{KEY}@bucket"
NO_URLS = f"s3://[{KEY}@bucket", f"s3://id:{KEY}℀@bucket"


@pytest.mark.parametrize("url", [*URLS, *NO_URLS])
def test_a_url_that_cannot_be_used_is_told_without_them(settings_for, database_url, tmp_path, url):
    with pytest.raises(StorageRefused, match=r"MOTET_BACKUP_URL .* cannot be used") as told:
        Bucket.of(url, settings_for(database_url, tmp_path), "MOTET_BACKUP_URL")
    assert KEY not in str(told.value)


def test_a_bucket_that_does_not_answer_is_told_without_them(storage_with, free_port, caplog):
    where = {"storage_url": f"s3://id:{KEY}@bucket/prefix?token={KEY}", "storage_endpoint": f"http://127.0.0.1:{free_port()}"}
    bucket = storage_with(storage_dir=None, storage_region="us-east-1", storage_retries=0, **where)
    with caplog.at_level(logging.INFO), pytest.raises(OSError):  # noqa: PT011  (whatever it is)
        bucket.check()
    assert "the bucket s3://…@bucket/prefix?… does not answer" in caplog.text
    assert KEY not in caplog.text


def test_an_admin_and_an_operator_are_told_without_them(serve, settings_for, new_database_url, tmp_path):
    folder = f"file://{tmp_path}/objects?token={KEY}"
    settings = settings_for(new_database_url, tmp_path, storage_dir=None, storage_url=folder, storage_move_to=folder)
    caller = serve(settings)
    assert caller.get("/v1/admin/storage").json()["address"] == f"file://{tmp_path}/objects?…"
    with pytest.raises(SettingsError, match="where the objects are") as told:
        move(settings)
    assert KEY not in str(told.value)
