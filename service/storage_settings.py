"""Settings of storage: a folder or a bucket, its links, the transfer port. A part of Settings, which names the environment."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

from service.setting_types import HttpUrlText, Port, StorageUrl


class StorageSettings(BaseSettings):
    storage_dir: Path | None  # of the objects, shared by all service processes; needed unless storage_url is set
    storage_url: StorageUrl | None = None  # file:///…, s3://bucket/prefix, gs://…, az://…
    storage_move_to: StorageUrl | None = None  # where `move-storage` copies the objects
    storage_endpoint: HttpUrlText | None = None  # of an S3-compatible server; left out, the cloud's own
    storage_public_endpoint: HttpUrlText | None = None  # the same for tenants and workers, where it differs
    storage_region: str | None = None
    storage_path_style: bool | None = None  # endpoint/bucket/key; left out, wherever an endpoint is named
    storage_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    storage_kms_key: str | None = None
    storage_retries: Annotated[int, Field(ge=0, le=20)] = 2
    storage_timeout_seconds: Annotated[float, Field(ge=1, le=600)] = 15  # of one request, an 8 MiB part or 1 GiB copy
    storage_url_seconds: Annotated[float, Field(ge=1, le=604_800)] = 300  # life of a presigned download
    # who sends local files: the proxy before the API, told by `x-accel-redirect:/prefix` (nginx) or `x-sendfile`
    download_offload: Annotated[str, Field(pattern=r"^(x-accel-redirect:/\S+|x-sendfile)$")] | None = None
    transfer_port: Port | None = None  # where a process of its own sends and takes local files; None: the API's do
    transfer_url: HttpUrlText | None = None  # the same as tenants reach it; left out, workers alone use it

    @model_validator(mode="before")
    @classmethod
    def _folder_or_url(cls, values: Any) -> Any:
        """`storage_dir` may be left out where `storage_url` is set."""
        if isinstance(values, dict) and values.get("storage_url") and not values.get("storage_dir"):
            return values | {"storage_dir": None}
        return values

    @model_validator(mode="after")
    def _storage_agrees(self) -> Self:
        bucket = not self.storage_address.startswith("file://")
        for name in ("download_offload", "transfer_port"):
            if bucket and getattr(self, name) is not None:
                raise ValueError(f"MOTET_{name.upper()} is for files of this machine; a bucket sends and takes its own")
        moves_to_bucket = self.storage_move_to is not None and not self.storage_move_to.startswith("file://")
        named = [name for name in ("endpoint", "encryption", "kms_key") if getattr(self, f"storage_{name}") is not None]
        if named and not bucket and not moves_to_bucket:
            raise ValueError(f"MOTET_STORAGE_{named[0].upper()} needs MOTET_STORAGE_URL to name a bucket (s3://bucket/prefix)")
        if self.storage_kms_key is not None and self.storage_encryption in (None, "AES256"):
            raise ValueError("MOTET_STORAGE_KMS_KEY needs MOTET_STORAGE_ENCRYPTION=aws:kms or aws:kms:dsse")
        return self

    @model_validator(mode="after")
    def _one_sends_files(self) -> Self:
        if self.transfer_url is not None and self.transfer_port is None:
            raise ValueError("MOTET_TRANSFER_URL is the address of MOTET_TRANSFER_PORT, which is not set")
        if self.transfer_url is not None and self.download_offload is not None:
            raise ValueError("MOTET_DOWNLOAD_OFFLOAD and MOTET_TRANSFER_URL exclude each other: either sends tenants' files")
        return self

    @property
    def storage_address(self) -> str:
        """Where objects are: a URL, also for a folder."""
        if self.storage_url is not None:
            return self.storage_url
        assert self.storage_dir is not None, "one of both is required"
        return f"file://{self.storage_dir.absolute()}"
