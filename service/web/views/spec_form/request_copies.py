"""A submission as a command and as a program, to copy. Pure."""

import json
from collections.abc import Mapping
from typing import Any


def as_curl(spec: Mapping[str, Any], api_url: str) -> str:
    """The submission as a command; a quote within the JSON is written so that the shell keeps it."""
    body = json.dumps(spec, indent=2, ensure_ascii=False).replace("'", "'\\''")
    return (
        f'curl -sS --fail-with-body "{api_url}/v1/tasks" -H "Authorization: Bearer $MOTET_API_KEY" '
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def as_python(spec: Mapping[str, Any], api_url: str) -> str:
    lines = ["from motet import Client", "", f"client = Client({api_url!r})  # the key: MOTET_API_KEY"]
    return "\n".join([*lines, f"task = client.tasks.create({_literal(spec)})", "task = client.tasks.wait(task.id)"])


def _literal(value: Any, indent: int = 0) -> str:
    """A Python literal over several lines."""
    if isinstance(value, Mapping):
        inner = "".join(f"{' ' * (indent + 4)}{key!r}: {_literal(one, indent + 4)},\n" for key, one in value.items())
        return f"{{\n{inner}{' ' * indent}}}"
    return repr(value)
