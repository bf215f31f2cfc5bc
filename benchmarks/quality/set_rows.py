"""A pair's rows as files: those of its task, and a test part that neither training nor selection reads. Trains nothing."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.quality.base_set_pairs import TEST_PART, RowSet


def rows_of(rows: RowSet, data: Path, folder: Path, most: int | None) -> tuple[Path, Path]:
    """(the task's file, the test file), in `folder`; at most `most` rows in all. Equal rows are taken once, so that none is on
    both sides. Raises OSError if the set is missing."""
    lines = [line for file in rows.files for line in (data / file).read_text(encoding="utf-8").split("\n") if line]
    known = list(dict.fromkeys(map(_canonical, lines)))
    drawn = random.Random(rows.name).sample(known, min(len(known), most or rows.rows, rows.rows))
    if rows.swapped:
        drawn = _swapped(drawn)
    drawn.sort(key=lambda line: hashlib.sha256(f"test {line}".encode()).digest())
    held = round(TEST_PART * len(drawn))
    task, test = folder / f"{rows.name}.jsonl", folder / f"{rows.name}.test.jsonl"
    for path, part in ((task, drawn[held:]), (test, drawn[:held])):
        path.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    return task, test


def _canonical(line: str) -> str:
    return json.dumps(json.loads(line))


def _swapped(lines: list[str]) -> list[str]:
    """Preference pairs: each row's own answer against that of the next row with another one."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    made = []
    for place, row in enumerate(rows):
        own = row["messages"][-1]
        others = (rows[(place + step) % len(rows)]["messages"][-1] for step in range(1, len(rows)))
        other = next(one for one in others if one["content"] != own["content"])
        pair = {"input": {"messages": row["messages"][:-1]}, "preferred_output": [own], "non_preferred_output": [other]}
        made.append(json.dumps(pair))
    return made
