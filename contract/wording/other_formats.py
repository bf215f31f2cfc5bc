"""What a file is that is not JSON Lines, and what a row is that has a form of elsewhere, and how to convert them."""

import json
from typing import Any

JSONL = "a data set is JSON Lines in UTF-8, one example a line"
TO_ROWS = 'each line a JSON object such as {"prompt": "…", "completion": "…"}'
_CONVERT = "datasets.load_dataset(…).to_json('train.jsonl') writes it"
_EACH_ON_A_LINE = "write each of its rows on a line of its own, as jq -c '.[]' list.json > train.jsonl does"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{")  # with a byte order mark, and without
FIRST_BYTES = 6  # as many as the longest of these have
_KINDS: tuple[tuple[str, tuple[str, ...], tuple[bytes, ...], str], ...] = (  # name, endings, first bytes, what to do
    ("Parquet", (".parquet",), (b"PAR1",), f"convert it first, for example {_CONVERT}"),
    ("Arrow", (".arrow", ".feather"), (b"ARROW1",), f"convert it first, for example {_CONVERT}"),
    ("gzip", (".gz", ".tgz"), (b"\x1f\x8b",), "decompress it first"),
    ("Zstandard", (".zst",), (b"\x28\xb5\x2f\xfd",), "decompress it first"),
    ("a zip archive", (".zip",), (b"PK\x03\x04",), "unpack it first"),
    ("UTF-16", (), _UTF_16, "save it as UTF-8 first"),
    ("a list in JSON", (), (b"[",), _EACH_ON_A_LINE),
    ("CSV", (".csv", ".tsv"), (), f"convert it first: {TO_ROWS}"),
)
_CHAT = 'a chat row of {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
_PAIR = '{"prompt": "…", "chosen": "…", "rejected": "…"}'
ANSWER_FIELDS = frozenset({"messages", "prompt", "completion", "text"})  # of rows for sft
PREFERENCE_FIELDS = frozenset({"input", "preferred_output", "non_preferred_output", "chosen", "rejected"})  # dpo; beside prompt
_ASKED_AND_ANSWERED = (("question", "answer"), ("input", "output"), ("prompt", "response"))
ONE_A_LINE = "write each row on a line of its own, ended by a line feed, as jq -c . does"


def other_format(first: bytes, name: str = "") -> str | None:
    """Which other format than JSON Lines these first bytes, or this name, are of, and what to do; None: none that is known."""
    for kind, endings, magic, way_out in _KINDS:
        if name.lower().endswith(endings) or first.startswith(magic):
            return f"is {kind}; {JSONL}: {way_out}"
    return None


def other_row(row: dict[str, Any]) -> str | None:
    """Which form of elsewhere this row has, and how to write it; None: none that is known."""
    if "instruction" in row:  # Alpaca's
        return f'is an instruction row; write it as {{"prompt": instruction and input, "completion": output}}, or as {_CHAT}'
    if "conversations" in row:
        return f"is a ShareGPT row; write it as {_CHAT}: from human is role user, gpt is assistant, and value is content"
    if "completion" in row and isinstance(row.get("label"), bool):  # KTO's
        return (
            "says by label whether its completion is wanted; keep the rows where it is true, without it, or write an answer "
            f"that is wanted and one that is not as {_PAIR}"
        )
    if any(isinstance(row.get(name), list) for name in ("chosen", "rejected")):
        return (
            'is a preference row whose answers are turns; write it as {"input": {"messages": the turns before the answers}, '
            '"preferred_output": [the last turn of chosen], "non_preferred_output": [the last turn of rejected]}, or as '
            f"{_PAIR}, each a text"
        )
    if "messages" not in row and any(isinstance(row.get(name), list) for name in ("prompt", "completion")):
        return f"is a completion row whose texts are turns; write it as {_CHAT}: those of prompt, then those of completion"
    for asked, answered in _ASKED_AND_ANSWERED:
        if isinstance(row.get(asked), str) and isinstance(row.get(answered), str):
            return f'is a row of {asked} and {answered}; write it as {{"prompt": {asked}, "completion": {answered}}}'
    if (ANSWER_FIELDS | PREFERENCE_FIELDS).isdisjoint(row):
        for name, held in row.items():
            if isinstance(held, list) and held and isinstance(held[0], dict) and not {"role", "from"} & held[0].keys():
                way_out = f"write each on a line of its own, as jq -c '.[{json.dumps(name):.60}][]' does"
                return f"holds a list of objects in {name!r:.60}; where these are the rows, {way_out}"
    return None


def not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a text that is not JSON, by the column alone: a line feed is in none."""
    return f"is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"


def row_not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is not JSON, and the way out where its object is whole and something follows it."""
    row = error.doc[: error.pos].strip()
    if not (error.msg == "Extra data" and row.startswith("{") and row.endswith("}")):
        return not_json(error)
    if error.doc[error.pos :].strip() == ",":
        return f"ends in a comma after its object, at column {error.colno}; remove it: no comma joins lines"
    return f"holds more than one object: another begins at column {error.colno}; {ONE_A_LINE}"
