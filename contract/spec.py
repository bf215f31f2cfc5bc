"""TaskSpec: what a tenant asks for, and how a search space becomes jobs.

Knows nothing of who trains, where, or how a file is stored: it holds names and numbers, checked hard.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, StrictBool, field_validator, model_validator

from contract.base import NO_BOOL, STORABLE, Strict

MAX_JOBS = 1024
MAX_RANK = 256
MAX_BATCH_SIZE = 1024
MAX_VALUES = 256  # of one dimension of a search space
MAX_SEED = 2**31 - 1

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), NO_BOOL]
Rank = Annotated[int, Field(ge=1, le=MAX_RANK, strict=True)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE, strict=True)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=128), STORABLE]


class Dataset(Strict):
    """Which rows train and which validate. Without `validation_file_id` a fraction of the rows is held out by row hash."""

    file_id: Name
    validation_file_id: Name | None = None
    validation_fraction: Annotated[float, Field(gt=0, le=0.5), NO_BOOL] = 0.1
    max_validation_rows: Annotated[int, Field(ge=1, le=4096, strict=True)] = 512


class SftObjective(Strict):
    """Supervised fine-tuning: mean cross entropy over completion tokens (every assistant turn of a chat row)."""

    type: Literal["sft"] = "sft"


Objective = SftObjective


class JobConfig(Strict):
    """One point of a search space: one adapter to train."""

    learning_rate: PositiveFloat
    rank: Rank
    alpha: PositiveFloat
    batch_size: BatchSize  # sequences in one optimizer step
    seed: Seed  # draws the adapter's first weights and the order of its data


class SearchSpace(Strict):
    """Values to try in each dimension. `grid` takes every combination; `random` draws `n` distinct ones with `seed`."""

    method: Literal["grid", "random"] = "grid"
    n: Annotated[int, Field(ge=1, le=MAX_JOBS, strict=True)] | None = Field(
        default=None, description="How many combinations `random` draws; not used by `grid`."
    )
    draw_seed: Seed = Field(default=0, description="Seed of the random draw itself.")
    learning_rate: Annotated[list[PositiveFloat], Field(min_length=1, max_length=MAX_VALUES)]
    rank: Annotated[list[Rank], Field(min_length=1, max_length=MAX_VALUES)] = Field(default=[16])
    alpha: Annotated[list[PositiveFloat], Field(min_length=1, max_length=MAX_VALUES)] | None = Field(
        default=None, description="The adapter's scale is alpha / rank. Left out, alpha is twice the rank."
    )
    batch_size: Annotated[list[BatchSize], Field(min_length=1, max_length=MAX_VALUES)] = Field(default=[4])
    seed: Annotated[list[Seed], Field(min_length=1, max_length=MAX_VALUES)] = Field(default=[0])

    @field_validator("learning_rate", "rank", "alpha", "batch_size", "seed")
    @classmethod
    def _distinct(cls, values: list[float] | None) -> list[float] | None:
        if values is not None and len(set(values)) != len(values):
            twice = sorted({v for v in values if values.count(v) > 1})
            raise ValueError(f"holds {twice[0]} more than once; every value would be trained again")
        return values

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.method == "random" and self.n is None:
            raise ValueError("method 'random' needs 'n', the number of combinations to draw")
        if self.method == "grid" and self.n is not None:
            raise ValueError("'n' belongs to method 'random'; a grid takes every combination")
        if self.method == "random" and self.n is not None and self.n > self.combinations:
            raise ValueError(f"'n' is {self.n}, but the space has only {self.combinations} combinations")
        if self.method == "grid" and self.combinations > MAX_JOBS:
            raise ValueError(
                f"the grid has {self.combinations} combinations, the limit is {MAX_JOBS}; "
                "shorten a list, or use method 'random' with 'n'"
            )
        return self

    @property
    def combinations(self) -> int:
        return math.prod(len(values) for values in self._axes().values())

    @property
    def size(self) -> int:
        """How many jobs the space expands to."""
        return self.n if self.n is not None else self.combinations

    def _axes(self) -> dict[str, Sequence[float]]:
        axes = {name: getattr(self, name) for name in ("learning_rate", "rank", "alpha", "batch_size", "seed")}
        return {name: values for name, values in axes.items() if values is not None}

    def _at(self, number: int) -> JobConfig:
        """The combination with this number, counting with the last axis fastest (as itertools.product does)."""
        picked: dict[str, float] = {}
        for name, values in reversed(self._axes().items()):
            number, place = divmod(number, len(values))
            picked[name] = values[place]
        picked.setdefault("alpha", 2.0 * picked["rank"])
        return JobConfig.model_validate(picked)

    def expand(self) -> Iterator[JobConfig]:
        """Yield the jobs' configurations in job-index order. The same space always gives the same list."""
        numbers: list[int] | range = range(self.combinations)
        if self.method == "random":
            numbers = random.Random(self.draw_seed).sample(numbers, self.size)
        return map(self._at, numbers)


class Training(Strict):
    """What all jobs of a task share. Rows longer than `max_seq_len` tokens are truncated, and the count is reported."""

    epochs: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    max_steps: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        default=None, description="An upper bound on each job's optimizer steps."
    )
    max_seq_len: Annotated[int, Field(ge=8, le=131072, strict=True)] = 1024
    weight_decay: Annotated[float, Field(ge=0, le=1), NO_BOOL] = 0.01
    max_grad_norm: PositiveFloat = Field(default=1.0, description="Each adapter's gradient is clipped to this global norm.")


class EarlyExitPolicy(Strict):
    """When a job is stopped. Names and defaults are ALTO's (Algorithm 1, section 5); `none` trains every job to its end."""

    policy: Literal["alto", "none"] = "alto"
    warmup_fraction: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.05
    keep_fraction: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.25
    ema_alpha: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.1
    window: Annotated[int, Field(ge=2, le=100, strict=True)] = 2
    patience_divergence: Annotated[int, Field(ge=1, le=100, strict=True)] = 2
    patience_overfitting: Annotated[int, Field(ge=1, le=100, strict=True)] = 2
    tau_slope: Annotated[float, Field(ge=0), NO_BOOL] = 0.001
    tau_gap: Annotated[float, Field(gt=0), NO_BOOL] = 0.1
    eval_every: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        default=None, description="Steps between evaluations; left out, max(1, steps // 60)."
    )


class TaskSpec(Strict):
    """One task: a base model, a dataset, an objective and a search space."""

    name: Name | None = None
    base_model: Name
    dataset: Dataset
    objective: Objective = SftObjective()
    search_space: SearchSpace
    training: Training = Training()
    early_exit: EarlyExitPolicy = EarlyExitPolicy()
    gpus: Annotated[int, Field(ge=1, le=64, strict=True)] = Field(default=1, description="GPUs of one node.")
    priority: Annotated[int, Field(ge=1, le=100, strict=True)] = Field(default=1, description="Weight in the queue.")
    not_before: AwareDatetime | None = Field(default=None, description="The task starts no earlier.")
    deadline: AwareDatetime | None = Field(
        default=None, description="When the task should have ended; it counts for more near it, and is told if it will be late."
    )
    labels: Annotated[dict[Name, Annotated[str, Field(max_length=512), STORABLE]], Field(max_length=16)] = Field(default={})

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.deadline is not None and self.not_before is not None and self.deadline <= self.not_before:
            raise ValueError("'deadline' does not lie after 'not_before'")
        return self

    def jobs(self) -> list[JobConfig]:
        """The task's jobs in index order."""
        return list(self.search_space.expand())


class Schedule(Strict):
    """One job's calendar, in optimizer steps."""

    total_steps: int
    warmup_steps: int
    eval_every: int
    boundary: StrictBool  # whether warmup ends before training does, so that a selection takes place

    @classmethod
    def of(cls, spec: TaskSpec, config: JobConfig, train_rows: int) -> Self:
        """The calendar of `config` over `train_rows` rows: `epochs` passes, the last step of a pass may be short."""
        if train_rows < 1:
            raise ValueError("there are no rows to train on")
        total = spec.training.epochs * math.ceil(train_rows / config.batch_size)
        if spec.training.max_steps is not None:
            total = min(total, spec.training.max_steps)
        policy = spec.early_exit
        warmup = min(total, max(1, math.ceil(policy.warmup_fraction * total)))
        eval_every = policy.eval_every or max(1, total // 60)
        return cls(
            total_steps=total,
            warmup_steps=warmup,
            eval_every=min(eval_every, total),
            boundary=policy.policy != "none" and warmup < total,
        )

    def evaluates_at(self, step: int) -> bool:
        """Whether validation runs after this step (1-based)."""
        return step % self.eval_every == 0 or step == self.total_steps or (self.boundary and step == self.warmup_steps)
