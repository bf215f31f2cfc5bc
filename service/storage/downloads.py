"""Answers with a stored object: a redirect to its presigned URL, headers for a proxy that sends it, or its bytes in blocks.

The sha256 is the ETag and Content-Digest; a request may ask for one byte range.
"""

import base64
import os
import re
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from contract.messages.upload_messages import FOLLOWS_REDIRECTS
from service.http.problems import Problem
from service.storage.object_store import BLOCK, Caller, ObjectMissing, Storage

_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)")
_OFFSET_DIGITS = 19  # so many lie beyond any object, and int() refuses thousands


class RangeOutside(Problem):
    status, code, title = 416, "range_outside", "The range lies outside the object"


class ObjectLost(Problem):
    status, code, title = 500, "object_lost", "Storage does not hold what the database refers to"


def send_object(
    request: Request, storage: Storage, sha256: str, filename: str, media_type: str, worker: bool = False
) -> Response:
    """The object, the requested range (206), a redirect (307), to HEAD its headers alone, or 304 if the caller has it. Raises
    ObjectLost or RangeOutside.

    worker: the caller is one, and comes without a proxy; it is redirected only if it says that it follows.
    """
    etag = f'"{sha256}"'
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=_headers(etag))
    try:
        storage.size(sha256)
        # a bucket's URL of a GET refuses HEAD
        follows = request.method != "HEAD" and (not worker or FOLLOWS_REDIRECTS in request.headers)
        if follows and (url := storage.presign(sha256, filename, media_type, caller_of(request, worker))) is not None:
            return redirect(url)
        source = storage.open(sha256)
    except ObjectMissing:
        raise ObjectLost("The bytes are missing from storage; please report this.") from None
    if not worker and (by_proxy := storage.proxy_headers(sha256)):
        source.close()
        # without Content-Digest: the proxy also answers with ranges
        return Response(None, 200, _headers(etag) | {"Content-Disposition": attachment(filename)} | by_proxy, media_type)
    return send_opened(request, source, etag, filename, media_type, digest(sha256))


def send_opened(
    request: Request, source: BinaryIO, etag: str, filename: str, media_type: str, whole_digest: str | None = None
) -> Response:
    """The bytes of `source`, or the requested range (206), or to HEAD their headers alone. Closes it. Raises RangeOutside.

    whole_digest: the Content-Digest of all of them.
    """
    size = source.seek(0, os.SEEK_END)
    headers = _headers(etag) | {"Content-Disposition": attachment(filename)}
    try:
        wanted = _range(request, etag, size)
    except RangeOutside:
        source.close()
        raise
    status, (first, last) = (206, wanted) if wanted is not None else (200, (0, size - 1))
    headers["Content-Length"] = str(last - first + 1)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    elif whole_digest is not None:
        headers["Content-Digest"] = whole_digest
    if request.method == "HEAD":
        source.close()
        return Response(None, status, headers, media_type)
    return StreamingResponse(_blocks(source, first, last - first + 1), status, headers, media_type)


def caller_of(request: Request, worker: bool = False) -> Caller:
    """By which address the request reached the service."""
    return Caller(request.url.scheme, request.url.hostname or "", worker)


def _headers(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}


def redirect(url: str) -> Response:
    """To a presigned URL, which nobody may keep: it ends soon, and opens its object to everybody who has it."""
    return RedirectResponse(url, 307, {"Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer"})


def matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match header names this entity tag (weak comparison)."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def attachment(filename: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(filename, safe='')}"


def digest(sha256: str) -> str:
    """The Content-Digest header (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def _range(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """First and last byte of the requested range. None (the whole object) without one plain range, or if If-Range differs."""
    asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
    condition = request.headers.get("if-range")
    if asked is None or asked.group() == "bytes=-" or (condition is not None and condition != etag):
        return None
    begin, end = asked.groups()
    if begin == "":
        first, last = max(0, size - _offset(end)), size - 1
    else:
        first, last = _offset(begin), min(_offset(end), size - 1) if end else size - 1
    if first > last:
        raise RangeOutside(f"The object has {size} bytes.", headers={"Content-Range": f"bytes */{size}"})
    return first, last


def _offset(digits: str) -> int:
    return int(digits.lstrip("0")[:_OFFSET_DIGITS] or "0")


def _blocks(source: BinaryIO, first: int, count: int) -> Iterator[bytes]:
    with source:
        source.seek(first)
        while count > 0 and (block := source.read(min(BLOCK, count))):
            count -= len(block)
            yield block
