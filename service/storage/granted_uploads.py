"""The body of a granted upload, written to storage and verified on the way. Knows no tokens."""

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from service.http.problems import invalid_field
from service.http.request_bodies import pour
from service.storage.object_store import ObjectMismatch, Storage
from service.storage.upload_grants import Granted


async def store_granted(request: Request, storage: Storage, granted: Granted) -> None:
    """Keep the body if it is the granted object, which replaces one that is there, byte for byte the same. Raises TooLarge, or
    Invalid with `object_mismatch`."""
    incoming = await run_in_threadpool(storage.receive)
    try:
        await pour(request, incoming.write, granted.size)
        await run_in_threadpool(incoming.commit, granted.sha256, granted.size)
    except ObjectMismatch as error:
        raise invalid_field("body", "object_mismatch", str(error)) from None
    finally:
        await run_in_threadpool(incoming.abandon)
