"""Chooses the example's rows from GSM8K's published training file. Knows that file's shape and sha256; trains nothing.

    python examples/gsm8k/choose_rows.py path/to/grade_school_math/data/train.jsonl

The published rows are {"question", "answer"}; the example's are chat rows. Rows of at most 400 characters are put in the order
of their sha256, which is as good as drawn by lot and needs no seed: the first 560 train, the next 16 validate.
"""

import argparse
import hashlib
import json
from pathlib import Path

SOURCE_SHA256 = "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"
MAX_CHARACTERS = 400
TRAIN_ROWS = 560
VALIDATION_ROWS = 16


def chat_row(row: dict[str, str]) -> str:
    """One line of chat JSONL, without its newline."""
    turns = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
    return json.dumps({"messages": turns}, ensure_ascii=False)


def choose(source: bytes) -> tuple[list[str], list[str]]:
    """The training and the validation rows out of the published file; SystemExit if it is another file."""
    digest = hashlib.sha256(source).hexdigest()
    if digest != SOURCE_SHA256:
        raise SystemExit(f"this is not the GSM8K file the example was made from: its sha256 is {digest}")
    rows = [json.loads(line) for line in source.decode().splitlines()]
    short = {chat_row(row) for row in rows if len(row["question"]) + len(row["answer"]) <= MAX_CHARACTERS}
    drawn = sorted(short, key=lambda line: hashlib.sha256(line.encode()).digest())
    return drawn[:TRAIN_ROWS], drawn[TRAIN_ROWS : TRAIN_ROWS + VALIDATION_ROWS]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.jsonl and validation.jsonl of the GSM8K example.")
    parser.add_argument("source", type=Path, help="grade_school_math/data/train.jsonl as published")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: this one)")
    arguments = parser.parse_args()
    train, validation = choose(arguments.source.read_bytes())
    for name, lines in (("train.jsonl", train), ("validation.jsonl", validation)):
        content = "".join(line + "\n" for line in lines).encode()
        (arguments.out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {name}  ({len(lines)} rows, {len(content):,} bytes)")


if __name__ == "__main__":
    main()
