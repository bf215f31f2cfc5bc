"""SearchSpace: the configurations that a task tries, and their expansion into jobs. JobConfig: one configuration.

Knows no data, no objective and no training: only names and numbers, strictly validated.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from contract.strict import NO_BOOL, Strict

MAX_JOBS = 1024
MAX_RANK = 256
MAX_BATCH_SIZE = 1024
MAX_VALUES = 256  # per dimension of a search space
MAX_SEED = 2**31 - 1
ALPHA_RATIO = 2.0  # default alpha / rank (ALTO A.4)

# generous limits: values within float32's range, with room for the products of a step
MAX_LEARNING_RATE = 1e30
MAX_ALPHA = 65_536.0
MAX_BETA = 1e4


LearningRate = Annotated[float, Field(gt=0, le=MAX_LEARNING_RATE, allow_inf_nan=False), NO_BOOL]
Alpha = Annotated[float, Field(gt=0, le=MAX_ALPHA, allow_inf_nan=False), NO_BOOL]
AlphaRatio = Annotated[float, Field(gt=0, le=MAX_ALPHA / MAX_RANK, allow_inf_nan=False), NO_BOOL]
Beta = Annotated[float, Field(gt=0, le=MAX_BETA, allow_inf_nan=False), NO_BOOL]
Share = Annotated[float, Field(ge=0, lt=1), NO_BOOL]
Decay = Annotated[float, Field(ge=0, le=1), NO_BOOL]
Rank = Annotated[int, Field(ge=1, le=MAX_RANK, strict=True)]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE, strict=True)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, strict=True)]
RateSchedule = Literal["constant", "linear", "cosine"]
Module = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODULES: tuple[Module, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Modules = Annotated[tuple[Module, ...], Field(min_length=1, max_length=len(MODULES))]


def _in_order(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    if len(set(modules)) != len(modules):
        raise ValueError("names a module more than once")
    return tuple(module for module in MODULES if module in modules)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | int | float) else value


def _as_choices(value: object) -> object:
    """Read `q_proj` and [q_proj, v_proj] as one choice: a list whose only value is that list of modules."""
    chosen = _listed(value)
    return [chosen] if isinstance(chosen, list) and chosen and all(isinstance(one, str) for one in chosen) else chosen


class _OneOrMany:
    """Annotation of an axis: a single value may stand without its list."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        many = handler(schema)
        return many if handler.mode == "serialization" else {"anyOf": [many, many["items"]]}


T = TypeVar("T")
Values = Annotated[list[T], Field(min_length=1, max_length=MAX_VALUES), _OneOrMany()]


class JobConfig(Strict):
    """One point of a search space: one adapter to train."""

    learning_rate: LearningRate  # the peak; `schedule` gives its course
    rank: Rank
    alpha: Alpha  # the adapter's scale is alpha / rank, under rslora alpha / sqrt(rank)
    batch_size: BatchSize  # sequences per optimizer step; under dpo, pairs
    seed: Seed  # seeds the adapter's initial weights, the order of its data and its dropout
    dropout: Share = 0.0  # of the adapter's input
    weight_decay: Decay = 0.01
    schedule: RateSchedule = "constant"
    lr_warmup_ratio: Share = 0.0  # share of the steps over which the learning rate rises to its peak
    target_modules: Modules = MODULES
    rslora: StrictBool = False  # rank-stabilised scale (Kalajdzievski 2023)
    beta: Beta | None = None  # dpo alone: strength of the penalty for leaving the reference

    @field_validator("target_modules")
    @classmethod
    def _ordered(cls, modules: tuple[Module, ...]) -> tuple[Module, ...]:
        return _in_order(modules)

    @property
    def scale(self) -> float:
        """The factor of B A x."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def plain_alpha(self) -> float:
        """The alpha that gives this scale without rslora."""
        return self.alpha * math.sqrt(self.rank) if self.rslora else self.alpha

    def rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of optimizer step `step`, counted from 0, of `total_steps`.

        It rises linearly during warmup, whose last step has the full rate, then falls to zero after the last step (`linear`;
        `cosine`: half a wave) or stays constant.
        """
        warmup = math.ceil(self.lr_warmup_ratio * total_steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, total_steps - warmup)
        match self.schedule:
            case "constant":
                return self.learning_rate
            case "linear":
                return self.learning_rate * (1 - done)
            case "cosine":
                return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class ListedJob(Strict):
    """A configuration that is named outright. What is left out is as in a space that leaves it out."""

    learning_rate: LearningRate
    rank: Rank = 16
    alpha: Alpha | None = None
    batch_size: BatchSize = 4
    seed: Seed = 0
    dropout: Share = 0.0
    weight_decay: Decay | None = None
    schedule: RateSchedule = "constant"
    lr_warmup_ratio: Share = 0.0
    target_modules: Annotated[Modules, _OneOrMany()] = MODULES
    rslora: StrictBool = False
    beta: Beta | None = None


_AXES = (
    *("learning_rate", "rank", "alpha", "alpha_ratio", "batch_size", "dropout", "weight_decay", "schedule"),
    *("lr_warmup_ratio", "target_modules", "rslora", "beta", "seed"),
)


class SearchSpace(Strict):
    """Values to try in each dimension; a single one may stand without its list. `grid` takes every combination, `random` draws
    `n` distinct ones with `draw_seed`, `list` takes the configurations of `jobs` as they stand."""

    method: Literal["grid", "random", "list"] = "grid"
    n: Annotated[int, Field(ge=1, le=MAX_JOBS, strict=True)] | None = Field(
        default=None, description="How many combinations `random` draws; not used by `grid`."
    )
    draw_seed: Seed = Field(default=0, description="Seed of the random draw itself.")
    jobs: Annotated[list[ListedJob], Field(min_length=1, max_length=MAX_JOBS)] | None = Field(
        default=None, description="The configurations of method `list`."
    )
    learning_rate: Values[LearningRate] | None = Field(
        default=None, validate_default=True, description="Required, but for method `list`."
    )
    rank: Values[Rank] = Field(default=[16])
    alpha: Values[Alpha] | None = Field(
        default=None, description="The adapter's scale is alpha / rank. Left out, alpha is twice the rank."
    )
    alpha_ratio: Values[AlphaRatio] | None = Field(
        default=None, description="Instead of alpha: alpha as a multiple of the rank."
    )
    batch_size: Values[BatchSize] = Field(default=[4])
    seed: Values[Seed] = Field(default=[0])
    dropout: Values[Share] = Field(default=[0.0])
    weight_decay: Values[Decay] | None = Field(default=None, description="Left out, training.weight_decay.")
    schedule: Values[RateSchedule] = Field(
        default=["constant"], description="What becomes of the learning rate after its warmup."
    )
    lr_warmup_ratio: Values[Share] = Field(
        default=[0.0], description="The part of a job's steps over which its learning rate rises linearly."
    )
    target_modules: Annotated[Values[Modules], BeforeValidator(_as_choices)] = Field(
        default=[MODULES],
        description="Lists of the modules that get an adapter; each list is one value, and a list of names is one choice.",
    )
    rslora: Values[StrictBool] = Field(default=[False], description="Whether the adapter's scale is alpha / sqrt(rank).")
    beta: Values[Beta] | None = Field(default=None, description="Of objective dpo, which takes 0.1 where it is left out.")

    @field_validator("target_modules")
    @classmethod
    def _ordered(cls, choices: list[tuple[Module, ...]]) -> list[tuple[Module, ...]]:
        return [_in_order(modules) for modules in choices]

    @field_validator("learning_rate")
    @classmethod
    def _given(cls, values: list[float] | None, info: ValidationInfo) -> list[float] | None:
        if values is None and info.data.get("method", "list") != "list":
            raise PydanticCustomError("missing", "Field required")
        return values

    @field_validator(*_AXES)
    @classmethod
    def _distinct(cls, values: list[Any] | None) -> list[Any] | None:
        if values is not None and len(set(values)) != len(values):
            twice = next(v for v in values if values.count(v) > 1)
            raise ValueError(f"holds {twice} more than once; every value would be trained again")
        return values

    @model_validator(mode="after")
    def _of_one_method(self) -> Self:
        if self.method == "list":
            # a stored space names its defaults too
            known = type(self).model_fields
            given = [name for name in ("n", *_AXES) if getattr(self, name) != known[name].default]
            if self.jobs is None:
                raise ValueError("method 'list' needs 'jobs', the configurations themselves")
            if len(set(self.jobs)) != len(self.jobs):
                again = next(place for place, job in enumerate(self.jobs) if job in self.jobs[:place])
                raise ValueError(f"jobs[{again}] is listed before; it would be trained again")
            if given:
                raise ValueError(f"'{given[0]}' belongs to methods 'grid' and 'random'; method 'list' takes 'jobs' alone")
        elif self.jobs is not None:
            raise ValueError("'jobs' belongs to method 'list'; a grid and a random draw take lists of values")
        if self.alpha is not None and self.alpha_ratio is not None:
            raise ValueError("holds both 'alpha' and 'alpha_ratio'; leave one of them out")
        return self

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
        if self.jobs is not None:
            return len(self.jobs)
        return math.prod(len(values) for values in self._axes().values())

    @property
    def size(self) -> int:
        """The number of jobs the space expands to."""
        return self.n if self.n is not None else self.combinations

    def says(self, name: str) -> bool:
        """Whether the space or a listed job sets this dimension explicitly."""
        return getattr(self, name) is not None or any(getattr(job, name) is not None for job in self.jobs or ())

    def _axes(self) -> dict[str, Sequence[Any]]:
        axes = {name: getattr(self, name) for name in _AXES}
        return {name: values for name, values in axes.items() if values is not None}

    def _at(self, number: int) -> dict[str, Any]:
        """The combination with this index; the last axis varies fastest (as in itertools.product)."""
        picked: dict[str, Any] = {}
        for name, values in reversed(self._axes().items()):
            number, place = divmod(number, len(values))
            picked[name] = values[place]
        return picked

    def expand(self, shared: Mapping[str, Any] = {}) -> Iterator[JobConfig]:
        """Yield the jobs' configurations in job-index order. The same space always gives the same list.

        `shared` fills in fields that a configuration leaves open.
        """
        if self.jobs is not None:
            return (_config(job.model_dump(exclude_none=True), shared) for job in self.jobs)
        numbers: list[int] | range = range(self.combinations)
        if self.method == "random":
            numbers = random.Random(self.draw_seed).sample(numbers, self.size)
        return (_config(self._at(number), shared) for number in numbers)


def _config(picked: dict[str, Any], shared: Mapping[str, Any]) -> JobConfig:
    ratio = picked.pop("alpha_ratio", ALPHA_RATIO)
    picked.setdefault("alpha", ratio * picked["rank"])
    return JobConfig.model_validate({**shared, **picked})
