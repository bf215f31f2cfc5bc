"""Chooses the example's rows from the E2E NLG data as published with LoRA's code. Knows those files' shape and sha256.

    python examples/restaurants/choose_rows.py path/to/LoRA/examples/NLG/data/e2e

Each published line is `name : X | Type : Y | ...||a sentence`. Kept are rows whose sentence begins with the name and says every
value word for word (family friendly with a negation, or without one), which most published sentences do not: from few rows a
small model learns only what they agree on. Left out are meanings with a price and sentences of more than 160 characters. The
meanings are put in the order of their sha256; the first 16 are held out, one sentence each; the sentences of the others train.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = {
    "valid.txt": "ba963113c8401d3d26216c0dc0a6dae1ea6ea927de3bf830e32c41f65401c80d",
    "test.txt": "81b1bcd40c4f12845ec4eb61a77bf43765d112483cd9b2f91ef10bfc1b3d8f13",
}
MAX_CHARACTERS = 160
HELD_OUT, TRAIN_ROWS = 16, 600
NEGATIVE = re.compile(r"\b(not|non|no|isn't|unfriendly|adults?)\b|n't\b")


def tidy(text: str) -> str:
    """The text without the white space that the published files have before punctuation."""
    text = re.sub(r"\s+([.,!?;:'])", r"\1", text.strip())
    return re.sub(r"\s*-\s*", "-", re.sub(r"' s\b", "'s", text)).replace(" n't", "n't")


def rows(source: str) -> Iterator[tuple[dict[str, str], str]]:
    """Each meaning, by field, and its sentence."""
    for line in source.splitlines():
        meaning, _, sentence = line.partition("||")
        fields = (part.split(" : ", 1) for part in meaning.split("|"))
        yield {name.strip().lower(): tidy(value) for name, value in fields}, tidy(sentence)


def is_plain(meaning: dict[str, str], sentence: str) -> bool:
    """Whether the sentence begins with the name and says everything, as the module's text has it."""
    if "price" in meaning or len(sentence) > MAX_CHARACTERS or not sentence.startswith(meaning["name"]):
        return False
    said = sentence.lower().replace("-", " ")
    if not all(value.lower().replace("-", " ") in said for field, value in meaning.items() if field != "family friendly"):
        return False
    friendly = meaning.get("family friendly")
    return friendly is None or ("family friendly" in said and (NEGATIVE.search(said) is None) == (friendly == "yes"))


def chat_row(question: str, answer: str) -> str:
    """One line of chat JSONL, without its newline."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": turns}, ensure_ascii=False)


def choose(sources: list[str]) -> tuple[list[str], list[str]]:
    """The training and the validation rows."""
    sentences: dict[str, set[str]] = {}
    for source in sources:
        for meaning, sentence in rows(source):
            if is_plain(meaning, sentence):
                question = "\n".join(f"{field}: {value}" for field, value in meaning.items())
                sentences.setdefault(question, set()).add(sentence)
    meanings = sorted(sentences, key=_digest)
    held_out = [chat_row(question, min(sentences[question], key=_digest)) for question in meanings[:HELD_OUT]]
    train = sorted((chat_row(q, a) for q in meanings[HELD_OUT:] for a in sentences[q]), key=_digest)
    return train[:TRAIN_ROWS], held_out


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def read(folder: Path) -> list[str]:
    """The published files; SystemExit where one is another file."""
    found = []
    for name, expected in SOURCES.items():
        content = (folder / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != expected:
            raise SystemExit(f"{name} is not the file that the example was made from: its sha256 is {digest}")
        found.append(content.decode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.jsonl and validation.jsonl of the restaurants example.")
    parser.add_argument("source", type=Path, help="examples/NLG/data/e2e of LoRA's code")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: this one)")
    arguments = parser.parse_args()
    for name, lines in zip(("train.jsonl", "validation.jsonl"), choose(read(arguments.source)), strict=True):
        content = "".join(line + "\n" for line in lines).encode()
        (arguments.out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {name}  ({len(lines)} rows, {len(content):,} bytes)")


if __name__ == "__main__":
    main()
