"""A base by its content: what nodes report that they hold, and what the planner looks for. Knows no cache and no hub."""

import hashlib
from collections.abc import Iterable


def content_key(files: Iterable[tuple[str, str]]) -> str:
    """The base of these files, each a path and a sha256: sha256 over the lines "<path> <sha256>\\n", sorted by path."""
    return hashlib.sha256("".join(f"{path} {sha256}\n" for path, sha256 in sorted(files)).encode()).hexdigest()
