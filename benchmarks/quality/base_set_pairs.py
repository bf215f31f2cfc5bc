"""The swept (base, set) pairs, and a sweep's configurations. Trains nothing."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.search_space import JobConfig
from contract.task_spec import TaskSpec

ROWS = 1000
HELD_OUT = 96  # rows, in PARTS: a policy sees the first SEEN parts; all parts measure its choice
PARTS = 3
SEEN = 2


@dataclass(frozen=True)
class Pair:
    """A set by its path below the data folder: at most `rows` rows are used, of which `held_out` rows, or the share `part`, are
    held out."""

    name: str
    path: str
    objective: str = "sft"
    rows: int = ROWS
    held_out: int = HELD_OUT
    part: float = 0.2

    @property
    def edges(self) -> tuple[int, ...]:
        """Row counts at which the held-out parts end, except the last."""
        return tuple(self.held_out * part // PARTS for part in range(1, PARTS))


PAIRS = (
    Pair("gsm8k", "sft/gsm8k/train.jsonl"),
    Pair("e2e_nlg", "sft/e2e_nlg/valid.jsonl"),
    # The same number of training rows as the others. Its answers are one or two words: 96 rows hold 353 labels, and the best of
    # 60 jobs times 30 evaluations is then lucky by 3 %.
    Pair("mrpc", "sft/mrpc/train.jsonl", rows=1808, held_out=904, part=0.5),
    Pair("mawps", "sft/mawps/train.jsonl"),
    Pair("p3_dream", "sft/p3_tasks/dream.jsonl"),
    Pair("p3_samsum", "sft/p3_tasks/samsum.jsonl"),
    Pair("p3_gigaword", "sft/p3_tasks/gigaword.jsonl"),
    Pair("alpaca_eval", "preference/alpaca_eval_pairs/pairs.openai.jsonl", "dpo", rows=500),
)
RATES = (1e-5, 5e-5, 2e-4, 3e-4, 5e-4)  # ALTO A.4, for models of 7 to 8 billion parameters
RANKS = (16, 32, 64)
BATCH_SIZES = (1, 2, 4, 8)
# Recommended elsewhere: Unsloth's notebooks (rank 16, alpha 16, 2e-4, batches of 8, linear after a short warmup), and Tinker's
# cookbook (rank 32, alpha 32, its rate for a small model, linear), on our rows and steps.
RECOMMENDED = {
    "unsloth": {"learning_rate": 2e-4, "rank": 16, "alpha": 16, "batch_size": 8, "schedule": "linear", "lr_warmup_ratio": 0.05},
    "tinker": {"learning_rate": 5e-4, "rank": 32, "alpha": 32, "batch_size": 8, "schedule": "linear"},
}


def configurations(scale: float, dpo: bool) -> Iterator[dict[str, object]]:
    """The 60 of ALTO A.4, learning rates times `scale`; weight decay 0.01, constant rates, alpha twice the rank."""
    for rate, rank, size in itertools.product(RATES, RANKS, BATCH_SIZES):
        yield {"learning_rate": rate * scale, "rank": rank, "batch_size": size, **({"beta": 0.1} if dpo else {})}


def spec_of(pair: Pair, scale: float, epochs: int, policy: str = "none") -> TaskSpec:
    """The sweep as a tenant would post it: the 60 configurations, then the recommended ones."""
    dpo = pair.objective == "dpo"
    extra = [config | ({"beta": 0.1} if dpo else {}) for config in RECOMMENDED.values()]
    return TaskSpec.model_validate(
        {
            "base_model": "base-7m",
            "dataset": {"file_id": pair.name, "max_validation_rows": pair.held_out, "validation_fraction": pair.part},
            "objective": {"type": pair.objective},
            "search_space": {"method": "list", "jobs": [*configurations(scale, dpo), *extra]},
            "training": {"epochs": epochs, "max_seq_len": 512},
            "early_exit": {"policy": policy, "max_evaluation_share": None},
        }
    )


def swept(configs: list[JobConfig]) -> range:
    """Indexes of the 60, without the recommended ones."""
    return range(len(configs) - len(RECOMMENDED))


def rows_of(pair: Pair, data: Path, folder: Path, most: int | None) -> Path:
    """The set's rows as a file in `folder`, up to the pair's number and `most`. Raises OSError if the set is missing."""
    lines = [line for line in (data / pair.path).read_text(encoding="utf-8").split("\n") if line]
    taken = pair.rows if most is None else min(most, pair.rows)
    if len(lines) > taken:
        lines = random.Random(pair.name).sample(lines, taken)
    chosen = folder / f"{pair.name}.jsonl"
    chosen.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in lines), encoding="utf-8")
    return chosen
