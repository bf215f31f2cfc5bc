"""What both transports share: the service's address, headers, and the sentence for a service that does not answer."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from contract.compatibility.version import VERSION
from motet.api.errors import Unreachable
from motet.api.steps import CONNECT_SECONDS, Open, Query, Send

_NUMBER = re.compile(r"^\[Errno -?\d+\] ")  # before the system's sentence
_BLOCK = 2**20
_HERE = {"127.0.0.1", "::1", "localhost"}  # proxies from the environment are for other hosts


def file_blocks(path: Path) -> Iterator[bytes]:
    """A file's bytes as a request's body."""
    with path.open("rb") as content:
        yield from iter(lambda: content.read(_BLOCK), b"")


async def file_blocks_async(path: Path) -> AsyncIterator[bytes]:
    """As file_blocks, for asyncio: threads read."""
    with path.open("rb") as content:
        while block := await asyncio.to_thread(content.read, _BLOCK):
            yield block


def options(api_url: str, key: str) -> dict[str, Any]:
    """How to make an httpx client for this address. Raises Unreachable where it is no address."""
    headers = {"Authorization": f"Bearer {key}", "User-Agent": f"motet-client/{VERSION}"}
    proxied = _address(api_url).host not in _HERE
    # a download may be a redirect to storage, to which httpx does not send the key
    return {"base_url": api_url, "headers": headers, "trust_env": proxied, "follow_redirects": True}


def sent(request: Send, blocks: Callable[[Path], Any] = file_blocks) -> dict[str, Any]:
    """The request as httpx takes it. `blocks` makes a body of a file."""
    timeout = httpx.Timeout(request.seconds, connect=CONNECT_SECONDS)
    body: dict[str, Any] = {"json": request.json, "files": request.files, "headers": request.headers, "timeout": timeout}
    if request.content is not None:
        size = str(request.content.stat().st_size)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": size}
        body |= {"content": blocks(request.content), "headers": headers}
    return {"method": request.method, "url": request.path, "params": _given(request.query)} | body


def streamed(request: Open) -> dict[str, Any]:
    timeout = httpx.Timeout(request.seconds, connect=CONNECT_SECONDS)
    method = "GET" if request.json is None else "POST"
    return {"method": method, "url": request.path, "json": request.json, "headers": request.headers, "timeout": timeout}


def unreachable(api_url: str, error: httpx.TransportError) -> Unreachable:
    reason = _NUMBER.sub("", str(error)) or type(error).__name__
    said = f"{api_url} does not answer ({reason})"
    found = Unreachable(f"{said}; is it running? `motet up` starts a local one")
    found.__cause__ = error
    return found


def _given(query: Query | None) -> Mapping[str, Any] | None:
    return {name: value for name, value in query.items() if value is not None} if query else None


def _address(api_url: str) -> httpx.URL:
    try:
        url = httpx.URL(api_url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or "%" in url.host:
        raise Unreachable(f"{api_url!r} is not the address of an API; one looks like http://127.0.0.1:8321")
    return url
