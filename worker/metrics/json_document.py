"""Reads a text as JSON, as RFC 8259 has it."""

import json
from typing import NoReturn


def document(text: str) -> tuple[object] | None:
    """The JSON document, in a tuple; None where the text is none. NaN and Infinity are not JSON (RFC 8259, section 6)."""
    try:
        return (json.loads(text, parse_constant=_no_constant),)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
