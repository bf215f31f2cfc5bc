"""The (base, set) pairs that are swept, and the configurations of a sweep. Trains nothing."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.search import JobConfig
from contract.spec import TaskSpec

ROWS = 1000
HELD_OUT = 96  # rows, in parts that end at EDGES: a policy sees the first SEEN parts, all measure what it chose
EDGES = (32, 64)
SEEN = 2


@dataclass(frozen=True)
class Pair:
    """A set by its path below the data folder, of which at most `rows` are taken."""

    name: str
    path: str
    objective: str = "sft"
    rows: int = ROWS


PAIRS = (
    Pair("gsm8k", "sft/gsm8k/train.jsonl"),
    Pair("e2e_nlg", "sft/e2e_nlg/valid.jsonl"),
    Pair("mrpc", "sft/mrpc/train.jsonl"),
    Pair("mawps", "sft/mawps/train.jsonl"),
    Pair("p3_dream", "sft/p3_tasks/dream.jsonl"),
    Pair("p3_samsum", "sft/p3_tasks/samsum.jsonl"),
    Pair("p3_gigaword", "sft/p3_tasks/gigaword.jsonl"),
    Pair("alpaca_eval", "preference/alpaca_eval_pairs/pairs.openai.jsonl", "dpo", rows=500),
)
RATES = (1e-5, 5e-5, 2e-4, 3e-4, 5e-4)  # ALTO A.4, for models of 7 to 8 billion parameters
RANKS = (16, 32, 64)
BATCH_SIZES = (1, 2, 4, 8)
# What others recommend: Unsloth's notebooks (rank 16, alpha 16, 2e-4, batches of 8, linear after a short warmup), and
# Tinker's cookbook (rank 32, alpha 32, its rate for a small model, linear), on our rows and steps.
RECOMMENDED = {
    "unsloth": {"learning_rate": 2e-4, "rank": 16, "alpha": 16, "batch_size": 8, "schedule": "linear", "lr_warmup_ratio": 0.05},
    "tinker": {"learning_rate": 5e-4, "rank": 32, "alpha": 32, "batch_size": 8, "schedule": "linear"},
}


def configurations(scale: float, dpo: bool) -> Iterator[dict[str, object]]:
    """The 60 of ALTO A.4, learning rates times `scale`; weight decay 0.01, constant rates, alpha twice the rank."""
    for rate, rank, size in itertools.product(RATES, RANKS, BATCH_SIZES):
        yield {"learning_rate": rate * scale, "rank": rank, "batch_size": size, **({"beta": 0.1} if dpo else {})}


def spec_of(pair: Pair, scale: float, epochs: int, policy: str = "none") -> TaskSpec:
    """The sweep as a tenant would post it, with the recommended configurations after the 60."""
    dpo = pair.objective == "dpo"
    extra = [config | ({"beta": 0.1} if dpo else {}) for config in RECOMMENDED.values()]
    return TaskSpec.model_validate(
        {
            "base_model": "base-7m",
            "dataset": {"file_id": pair.name, "max_validation_rows": HELD_OUT, "validation_fraction": 0.2},
            "objective": {"type": pair.objective},
            "search_space": {"method": "list", "jobs": [*configurations(scale, dpo), *extra]},
            "training": {"epochs": epochs, "max_seq_len": 512},
            "early_exit": {"policy": policy, "max_evaluation_share": None},
        }
    )


def swept(configs: list[JobConfig]) -> range:
    """Indexes of the 60, without the recommended ones."""
    return range(len(configs) - len(RECOMMENDED))


def rows_of(pair: Pair, data: Path, folder: Path, most: int) -> Path:
    """The set's rows, `most` at most, as a file in `folder`. Raises OSError where the set is not there."""
    lines = [line for line in (data / pair.path).read_text(encoding="utf-8").split("\n") if line]
    if len(lines) > min(most, pair.rows):
        lines = random.Random(pair.name).sample(lines, min(most, pair.rows))
    chosen = folder / f"{pair.name}.jsonl"
    chosen.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in lines), encoding="utf-8")
    return chosen
