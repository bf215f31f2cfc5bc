"""Serves the scripts and styles of the package under a path that holds a hash of them all, so that browsers keep them for good.

One hash for the whole folder: the scripts import each other by relative paths, which stay within it.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from service.http.problems import NotFound

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}

router = APIRouter(include_in_schema=False)


@cache
def _files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_files()[name], mtime=0)


@cache
def version() -> str:
    """A hash of all static files."""
    digest = hashlib.sha256()
    for name, content in _files().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def url(name: str) -> str:
    """The path of a static file. Raises KeyError for a name that does not exist."""
    return f"/static/{version()}/{name}" if name in _files() else _missing(name)


def _missing(name: str) -> str:
    raise KeyError(f"there is no static file {name!r}")


@router.get("/static/{hash}/{name}")
async def get_static(hash: str, name: str, request: Request) -> Response:
    if name not in _files():
        raise NotFound(f"There is no static file {name!r}.")
    # an old page of an earlier version gets today's file, which must not be kept under the old hash
    headers = _FOR_GOOD if hash == version() else {"Cache-Control": "no-store"}
    kind = _TYPES[Path(name).suffix]
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            _compressed(name), headers=headers | {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}, media_type=kind
        )
    return Response(_files()[name], headers=headers, media_type=kind)
