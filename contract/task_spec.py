"""TaskSpec: what a tenant asks for.

Holds names and numbers, strictly validated. Knows no trainer, no node and no file storage.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from contract.early_exit_policy import MAX_STEPS, EarlyExitPolicy
from contract.evaluation.text_evaluation import Evaluation, named
from contract.integrations import Integrations
from contract.job_config import Decay, JobConfig
from contract.row_scores import Metric
from contract.search_space import SearchSpace
from contract.strict import NO_BOOL, STORABLE, Moment, Strict

MAX_SLOWDOWN = 3.0  # default bound beside others, chosen on traces (docs/SCHEDULING.md)
VAL_LOSS = "val_loss"
DPO_BETA = 0.1  # default of a search space (Rafailov et al. 2023, section 6)

Precision = Literal["bf16", "nf4", "nf4_double", "fp8"]  # of the frozen base
Isolation = Literal["shared", "dedicated"]
MaxSlowdown = Annotated[float, Field(ge=1, le=100, allow_inf_nan=False), NO_BOOL]
Name = Annotated[str, Field(min_length=1, max_length=128), STORABLE]

MOST_GPUS = 64  # of one node
Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS, strict=True)]


def doublings(least: int, most: int) -> tuple[int, ...]:
    """GPU counts from `least` to `most`, each twice the one before, so that each doubling halves the jobs per GPU."""
    return tuple(least << doublings for doublings in range(most.bit_length()) if least << doublings <= most)


def _widest(most: int, info: ValidationInfo) -> int:
    least = info.data.get("gpus")
    if least is not None and most not in (allowed := doublings(least, MOST_GPUS)):
        raise ValueError(f"is {most}, must be 'gpus' doubled any number of times: {', '.join(map(str, allowed))}")
    return most


MaxGpus = Annotated[Gpus, AfterValidator(_widest)]  # requires a field `gpus` before it in the model


class Dataset(Strict):
    """Which rows train and which validate. Without `validation_file_id` a fraction of the rows is held out by row hash."""

    file_id: Name
    validation_file_id: Name | None = None
    validation_fraction: Annotated[float, Field(gt=0, le=0.5), NO_BOOL] = 0.2
    max_validation_rows: Annotated[int, Field(ge=1, le=4096, strict=True)] = Field(
        default=512, description="An upper bound on the rows held out; those of a validation file are not bound by it."
    )


class Objective(Strict):
    """What is learned. `sft`: mean cross entropy over completion tokens. `dpo`: direct preference optimisation over pairs of
    answers (Rafailov et al. 2023), against the base, or the adapter that the task starts from."""

    type: Literal["sft", "dpo"] = "sft"
    turns: Literal["all", "last"] = Field(
        default="all", description="Of chat rows under sft: which turns of the assistant are learned."
    )


class WarmStart(Strict):
    """The adapter that every job starts from: one that an earlier task made, or one that was uploaded (`POST /v1/adapters`)."""

    adapter_id: Name


class Training(Strict):
    """What all jobs of a task share. Rows longer than `max_seq_len` tokens are truncated, and the count is reported."""

    epochs: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEPS, strict=True)] | None = Field(
        default=None, description="An upper bound on each job's optimizer steps."
    )
    max_seq_len: Annotated[int, Field(ge=8, le=131072, strict=True)] = 1024
    weight_decay: Decay = Field(default=0.01, description="Of jobs whose search space gives none.")
    max_grad_norm: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), NO_BOOL] = Field(
        default=1.0, description="Each adapter's gradient is clipped to this global norm."
    )


class TaskSpec(Strict):
    """One task: a base model, a dataset, an objective and a search space."""

    name: Name | None = None
    base_model: Name
    dataset: Dataset
    objective: Objective = Objective()
    search_space: SearchSpace
    precision: Precision = Field(
        default="bf16",
        description=(
            "Of the frozen base; on a CPU float32 stands for bf16. nf4 keeps its linear layers in 4 bits (QLoRA), a scale for "
            "each 64 numbers; nf4_double keeps the scales in 8 bits too. fp8 multiplies them in 8-bit floating point (e4m3, "
            "a scale for each row, activations quantised token by token), on a GPU of compute capability 8.9 or later."
        ),
    )
    warm_start: WarmStart | None = None
    training: Training = Training()
    early_exit: EarlyExitPolicy = EarlyExitPolicy()
    evaluation: Evaluation | None = Field(
        default=None, description="Texts to generate with the base and with every adapter that is kept, and how to score them."
    )
    select_by: Annotated[str, Field(max_length=40)] = Field(
        default=VAL_LOSS,
        description=(
            "What the winner is chosen by, and who goes on after warmup: val_loss, or the name of one of evaluation.metrics, "
            "but for an endpoint's. Jobs that a paired test over the prompts (95 %) does not part from the best result count "
            "as equal; of these the lowest validation loss goes first. By a metric, jobs wait at the end of warmup until all "
            "are scored. Asha's later rungs, and what ends a job by its own curve, go by validation losses in either case."
        ),
    )
    gpus: Gpus = Field(
        default=1,
        description=(
            "The fewest of one node that the task is given. Each holds the whole base, or where that does not fit a shard of "
            "it, and trains a part of the jobs; none is split, so more GPUs than jobs stand idle, which an estimate tells. "
            "Where so many GPUs cannot hold the base, the task is given twice, four times, ... as many: the fewest that hold "
            "it there, within max_gpus if that is given. For speed alone it is given more only if max_gpus allows it."
        ),
    )
    max_gpus: MaxGpus | None = Field(
        default=None,
        description=(
            "The most GPUs of one node that the task may be spread over: gpus doubled any number of times. Left out: as many "
            "as its base needs, and no more. It starts at the width at which it ends soonest on GPUs that nobody else needs "
            "meanwhile, and keeps it until it ends or leaves its node. You pay for the seconds of each GPU; an estimate says "
            "how many at each width. A width that saves less than a tenth of the time is not taken."
        ),
    )
    max_slowdown: MaxSlowdown | None = Field(
        default=None,
        description=(
            "How many times slower than alone the task may become by sharing its GPUs with other tasks of the same base. A "
            "task joins others only where it ends sooner than by waiting, and where everybody there stays within such a bound. "
            f"Left out: the default that an admin gave your tenant, or else {MAX_SLOWDOWN:g}. Up to 1.1 it shares with nobody."
        ),
    )
    isolation: Isolation = Field(
        default="shared",
        description="dedicated: the task has its GPUs for itself, for all of whose time it pays; no other task joins it.",
    )
    priority: Annotated[int, Field(ge=1, le=100, strict=True)] = Field(default=1, description="Weight in the queue.")
    not_before: Moment | None = Field(default=None, description="The task starts no earlier.")
    deadline: Moment | None = Field(
        default=None, description="When the task should have ended; it counts for more near it, and is told if it will be late."
    )
    labels: Annotated[dict[Name, Annotated[str, Field(max_length=512), STORABLE]], Field(max_length=16)] = Field(default={})
    integrations: Integrations = Field(default=[], description="Tracking servers to which its curves are mirrored.")

    @field_validator("search_space")
    @classmethod
    def _beta_of_dpo(cls, space: SearchSpace, info: ValidationInfo) -> SearchSpace:
        objective = info.data.get("objective")
        if objective is not None and objective.type != "dpo" and space.says("beta"):
            raise ValueError("gives 'beta', which only objective dpo has; leave it out, or set objective.type to 'dpo'")
        return space

    @model_validator(mode="after")
    def _selectable(self) -> Self:
        asked = self.evaluation
        known = [VAL_LOSS, *(map(named, asked.computed) if asked is not None else ())]
        if self.select_by not in known:
            late = asked is not None and self.select_by in asked.names
            why = "an endpoint grader, whose scores come after the winner is chosen" if late else "which nothing measures"
            raise ValueError(
                f"'select_by' is '{self.select_by}', {why}; what can be selected by: {', '.join(known)}"
                + ("" if asked is not None else "; ask for 'evaluation' with a metric")
            )
        if self.evaluation is not None and self.precision == "fp8":
            raise ValueError(
                "'evaluation' is not supported on a base in fp8; take 'precision' bf16, nf4 or nf4_double, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _milestones_past_warmup(self) -> Self:
        shares, policy = self.evaluation.milestones if self.evaluation is not None else [], self.early_exit
        if shares and policy.policy != "none" and shares[0] <= policy.warmup_fraction:
            raise ValueError(
                f"'evaluation.milestones' begins at {shares[0]:g}, but jobs are evaluated past their warmup alone, which takes "
                f"{policy.warmup_fraction:g} of their steps; take larger shares, or a smaller 'early_exit.warmup_fraction'"
            )
        return self

    @model_validator(mode="after")
    def _proposable(self) -> Self:
        if self.search_space.method == "tpe" and (self.early_exit.policy == "none" or self.early_exit.warmup_fraction == 1):
            raise ValueError(
                "'search_space.method' is 'tpe', which proposes by how warmups ended, but under 'early_exit' no warmup ends "
                "before the training; take another policy than none and a 'warmup_fraction' below 1, or method 'random'"
            )
        return self

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.deadline is not None and self.not_before is not None and self.deadline <= self.not_before:
            raise ValueError("'deadline' does not lie after 'not_before'")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of GPUs that the spec names, ascending. Without `max_gpus` a task may need more for its base."""
        return doublings(self.gpus, self.max_gpus or self.gpus)

    def jobs(self) -> list[JobConfig]:
        """The task's jobs in index order."""
        return list(self.search_space.expand(self._shared))

    def job_at(self, places: Mapping[str, int]) -> JobConfig:
        """The job that has these places in the search space (SearchSpace.config_at)."""
        return self.search_space.config_at(places, self._shared)

    @property
    def _shared(self) -> dict[str, Any]:
        """What a search space may leave open."""
        return {"weight_decay": self.training.weight_decay} | ({"beta": DPO_BETA} if self.objective.type == "dpo" else {})

    @property
    def cut_metric(self) -> str | None:
        """The text metric that jobs are ranked by where their warmup ends; None: validation scores, or nobody is stopped."""
        return self.select_by if self.select_by != VAL_LOSS and self.early_exit.ranks(self.search_space.size) else None

    @cached_property
    def metric(self) -> Metric:
        """By which validation scores jobs are compared: the loss, or, in a dpo search over beta, on which the loss depends, the
        share of pairs that are ordered wrongly."""
        space = self.search_space
        if self.objective.type != "dpo" or not space.says("beta"):
            return "loss"
        betas = set(space.beta or ()) if space.method == "tpe" else {job.beta for job in self.jobs()}
        return "error" if len(betas) > 1 else "loss"
