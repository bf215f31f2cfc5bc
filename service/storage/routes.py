"""HTTP route for admins: where objects are, and whether storage works now."""

import math
import time
from typing import Literal
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import BaseModel, Field

from contract.wording.field_mistakes import url_without_secrets
from service.app_state import Config, Store
from service.authentication import AdminDb
from service.http.response_schemas import problems
from service.storage.object_store import StorageRefused

router = APIRouter(prefix="/v1", responses=problems(401, 403))


class StorageResource(BaseModel):
    """Where files, checkpoints and adapters are. `problem` is null where a small object was just written, read and removed."""

    object: Literal["storage"] = "storage"
    kind: Literal["file", "s3", "gs", "az"]
    address: str
    problem: str | None
    may_pass: bool | None = Field(description="Whether the problem may go away by itself; null without a problem")
    seconds: float = Field(description="What the try took")
    free_bytes: int | None = Field(description="Null for a bucket")
    transfer_port: int | None = Field(description="MOTET_TRANSFER_PORT; null where the API sends a folder's objects itself")
    transfer_url: str | None = Field(
        description="MOTET_TRANSFER_URL, below which tenants reach that port: `/transfers/livez` answers whether they do"
    )


@router.get(
    "/admin/storage", operation_id="get_storage", summary="Where objects are kept, and whether that works", tags=["admin"]
)
def get_storage(admin: AdminDb, settings: Config, storage: Store) -> StorageResource:
    began, problem, may_pass = time.monotonic(), None, None
    try:
        storage.check()
    except OSError as error:
        problem, may_pass = str(error), not isinstance(error, StorageRefused)
    free, address = storage.free_bytes(), url_without_secrets(settings.storage_address)
    return StorageResource.model_validate(
        {
            "kind": urlsplit(address).scheme,
            "address": address,
            "problem": problem,
            "may_pass": may_pass,
            "seconds": time.monotonic() - began,
            "free_bytes": None if math.isinf(free) else int(free),
            "transfer_port": settings.transfer_port,
            "transfer_url": settings.transfer_url and settings.transfer_url.rstrip("/"),
        }
    )
