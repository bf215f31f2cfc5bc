"""Refuses by its name or first bytes a source that is not JSON Lines. Reads no rows."""

from contract.wording.other_formats import other_format
from service.http.problems import invalid_field, shown


def refuse_format(name: str, first: bytes) -> None:
    """Raise Invalid if the name or the first bytes are those of another format than JSON Lines."""
    if said := other_format(first, name):
        raise invalid_field("source", "format_not_taken", f"{shown(name)} {said}")


def readable(name: str) -> bool:
    """Whether a file of this name may be JSON Lines."""
    return name.lower().endswith((".jsonl", ".json", ".ndjson"))
