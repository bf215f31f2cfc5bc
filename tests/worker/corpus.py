"""The example's base, and chat rows that a tiny model can learn something from."""

import json
import random
from pathlib import Path
from typing import Any

EXAMPLE_BASE = Path(__file__).parents[2] / "examples" / "base-model"
WORDS = ["one", "two", "three", "four", "five", "six", "plus", "minus", "times", "equals", "apples", "pears", "sheep", "goats"]


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chat rows of 25 to 60 tokens that can be learned: the answer repeats the question's words."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(6, 14))
        said = [{"role": "user", "content": " ".join(words)}, {"role": "assistant", "content": " ".join(sorted(words))}]
        made.append({"messages": said})
    return made


def jsonl(made: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in made).encode()


PAIRS = [  # of which the shorter answer is preferred
    {
        "input": {"messages": [{"role": "user", "content": f"how many {what}, {n}?"}]},
        "preferred_output": [{"role": "assistant", "content": f"{n} {what}"}],
        "non_preferred_output": [{"role": "assistant", "content": f"no {what}, none at all"}],
    }
    for n in range(10)
    for what in ("apples", "pears", "sheep", "goats")
]
