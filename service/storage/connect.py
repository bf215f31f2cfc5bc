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
from service.storage.transfer_links import TransferLinks
from service.storage.upload_grants import UploadGrants

_BUCKET, _BUCKET_STORAGE = "service.storage.bucket:Bucket", "service.storage.bucket_storage:BucketStorage"


def storage_of(settings: Settings, db: Database) -> Storage:
    """The storage that the settings name. Opens no connection. `db`: where removals from a bucket are serialized."""
    return storage_at(settings.storage_address, settings, db, "MOTET_STORAGE_URL")


def storage_at(url: str, settings: Settings, db: Database, variable: str) -> Storage:
    """The storage of this URL (file:///…, s3://…, gs://…, az://…), otherwise as the settings say. `variable`: of the
    environment, which holds the URL. Raises StorageRefused, which names it, where the URL cannot be used."""
    if url.startswith("file://"):
        return _folder(url, settings)
    grants = UploadGrants(settings.secret_key.get_secret_value())

    @contextmanager
    def lock(sha256: str) -> Iterator[None]:
        with db.begin() as session:  # the advisory lock ends with the transaction, or with its process
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(sha256[:15], 16)})
            yield

    bucket = pkgutil.resolve_name(_BUCKET).of(url, settings, variable)
    made: Storage = pkgutil.resolve_name(_BUCKET_STORAGE)(bucket, grants, lock, settings.storage_url_seconds)
    return made


def folder_of(settings: Settings) -> LocalStorage:
    """The storage of settings that name a folder."""
    return _folder(settings.storage_address, settings)


def transfer_links(settings: Settings) -> TransferLinks | None:
    """The links to the transfer port; None where there is none."""
    if settings.transfer_port is None:
        return None
    secret = settings.secret_key.get_secret_value()
    return TransferLinks(secret, settings.transfer_port, settings.transfer_url, settings.storage_url_seconds)


def _folder(url: str, settings: Settings) -> LocalStorage:
    grants = UploadGrants(settings.secret_key.get_secret_value())
    return LocalStorage(Path(url.removeprefix("file://")), grants, settings.download_offload, transfer_links(settings))
