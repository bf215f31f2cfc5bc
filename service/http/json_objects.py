"""Parses JSON objects that a request names or brings, such as a base's config.json. Knows no fields of theirs."""

import json
from typing import Any

from service.http.problems import invalid_field


def json_object(content: bytes, what: str, field: str) -> dict[str, Any]:
    """The object. what: the file that holds it. Raises Invalid, which names `field`."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise invalid_field(field, "damaged", f"its {what} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise invalid_field(field, "damaged", f"its {what} is damaged: it holds no object")
    return found
