"""Refuses what is not JSON Lines, by a file's name and first bytes, and says what to convert. Reads no rows."""

from service.http.problems import invalid_field, shown

JSONL = "a data set is JSON Lines in UTF-8, one example a line"
TO_ROWS = 'each line a JSON object such as {"prompt": "…", "completion": "…"}'
_CONVERT = "datasets.load_dataset(…).to_json('train.jsonl') writes it"
_KINDS = (  # name, endings, first bytes, what to do
    ("Parquet", (".parquet",), b"PAR1", f"convert it first, for example {_CONVERT}"),
    ("Arrow", (".arrow", ".feather"), b"ARROW1", f"convert it first, for example {_CONVERT}"),
    ("gzip", (".gz", ".tgz"), b"\x1f\x8b", "decompress it first"),
    ("Zstandard", (".zst",), b"\x28\xb5\x2f\xfd", "decompress it first"),
    ("a zip archive", (".zip",), b"PK\x03\x04", "unpack it first"),
    ("CSV", (".csv", ".tsv"), None, f"convert it first: {TO_ROWS}"),
)


def refuse_format(name: str, first: bytes) -> None:
    """Raise Invalid if the name or the first bytes are those of another format than JSON Lines."""
    if said := other_format(first, name):
        raise invalid_field("source", "format_not_taken", f"{shown(name)} {said}")


def other_format(first: bytes, name: str = "") -> str | None:
    """Which other format than JSON Lines these first bytes, or this name, are of, and what to do; None: none that is known."""
    for kind, endings, magic, way_out in _KINDS:
        if name.lower().endswith(endings) or (magic is not None and first.startswith(magic)):
            return f"is {kind}; {JSONL}: {way_out}"
    return None


def readable(name: str) -> bool:
    """Whether a file of this name may be JSON Lines."""
    return name.lower().endswith((".jsonl", ".json", ".ndjson"))
