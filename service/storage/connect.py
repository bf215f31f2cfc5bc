"""Chooses storage by the settings: a folder, or a bucket. obstore is loaded for a bucket alone."""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from service.database.engine import Database
from service.settings import Settings
from service.storage.local_storage import LocalStorage
from service.storage.object_store import Storage
from service.storage.upload_grants import UploadGrants

_BUCKET, _BUCKET_STORAGE = "service.storage.bucket:Bucket", "service.storage.bucket_storage:BucketStorage"


def storage_of(settings: Settings, db: Database) -> Storage:
    """The storage that the settings name. Opens no connection. `db`: where removals from a bucket are serialized."""
    return storage_at(settings.storage_address, settings, db)


def storage_at(url: str, settings: Settings, db: Database) -> Storage:
    """The storage of this URL (file:///…, s3://…, gs://…, az://…), otherwise as the settings say."""
    grants = UploadGrants(settings.secret_key.get_secret_value())
    if url.startswith("file://"):
        return LocalStorage(Path(url.removeprefix("file://")), grants, settings.download_offload)

    @contextmanager
    def lock(sha256: str) -> Iterator[None]:
        with db.begin() as session:  # the advisory lock ends with the transaction, or with its process
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(sha256[:15], 16)})
            yield

    bucket = pkgutil.resolve_name(_BUCKET).of(url, settings)
    made: Storage = pkgutil.resolve_name(_BUCKET_STORAGE)(bucket, grants, lock, settings.storage_url_seconds)
    return made
