"""SearchSpace: the configurations that a task tries, and their expansion into jobs.

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

from contract.job_config import (
    MODULES,
    Alpha,
    AlphaRatio,
    BatchSize,
    Beta,
    Decay,
    JobConfig,
    LearningRate,
    Module,
    Modules,
    Rank,
    RateSchedule,
    Seed,
    Share,
    in_order,
)
from contract.strict import Strict

MAX_JOBS = 1024
MOST_COMBINATIONS = 2**63 - 1  # that a draw without repetition numbers
MAX_VALUES = 256  # per dimension of a search space
ALPHA_RATIO = 2.0  # default alpha / rank (ALTO A.4)
ROUNDS, LEAST_ROUND = 3, 8  # of `tpe`: each waits for its warmups, so there are few, of enough jobs to fill a device


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

    @field_validator("target_modules")
    @classmethod
    def _named_once(cls, modules: tuple[Module, ...]) -> tuple[Module, ...]:
        in_order(modules)
        return modules


_AXES = (
    *("learning_rate", "rank", "alpha", "alpha_ratio", "batch_size", "dropout", "weight_decay", "schedule"),
    *("lr_warmup_ratio", "target_modules", "rslora", "beta", "seed"),
)


class SearchSpace(Strict):
    """Values to try in each dimension; a single one may stand without its list. `grid` takes every combination, `random` draws
    `n` distinct ones with `draw_seed`, `list` takes the configurations of `jobs` as they stand. `tpe` tries `n` distinct ones
    in rounds (`rounds`): the first is drawn as by `random`, each next one is proposed by how the warmups before it ended."""

    method: Literal["grid", "random", "list", "tpe"] = "grid"
    n: Annotated[int, Field(ge=1, le=MAX_JOBS, strict=True)] | None = Field(
        default=None, description="How many combinations `random` and `tpe` try; not used by `grid`."
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
        return [in_order(modules) for modules in choices]

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
                raise ValueError(f"'{given[0]}' belongs to the other methods; method 'list' takes 'jobs' alone")
        elif self.jobs is not None:
            raise ValueError("'jobs' belongs to method 'list'; the other methods take lists of values")
        if self.alpha is not None and self.alpha_ratio is not None:
            raise ValueError("holds both 'alpha' and 'alpha_ratio'; leave one of them out")
        return self

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.method in ("random", "tpe") and self.n is None:
            raise ValueError(f"method '{self.method}' needs 'n', the number of combinations to try")
        if self.method == "grid" and self.n is not None:
            raise ValueError("'n' belongs to methods 'random' and 'tpe'; a grid takes every combination")
        if self.combinations > MOST_COMBINATIONS:
            raise ValueError(
                f"the space has {self.combinations} combinations, the limit is {MOST_COMBINATIONS}; shorten a list"
            )
        if self.n is not None and self.n > self.combinations:
            raise ValueError(f"'n' is {self.n}, but the space has only {self.combinations} combinations")
        if self.method == "tpe" and self.n is not None and self.n <= LEAST_ROUND:
            raise ValueError(
                f"'n' is {self.n}, but method 'tpe' draws the first {LEAST_ROUND} at random and would propose none; "
                f"take {LEAST_ROUND + 1} or more, or method 'random'"
            )
        if self.method == "grid" and self.combinations > MAX_JOBS:
            raise ValueError(
                f"the grid has {self.combinations} combinations, the limit is {MAX_JOBS}; "
                "shorten a list, or use method 'random' or 'tpe' with 'n'"
            )
        return self

    @property
    def combinations(self) -> int:
        if self.jobs is not None:
            return len(self.jobs)
        return math.prod(len(values) for values in self.axes().values())

    @property
    def size(self) -> int:
        """The number of jobs the space expands to."""
        return self.n if self.n is not None else self.combinations

    @property
    def rounds(self) -> list[range]:
        """The job indexes of each round, all but the first proposed: one round, but for `tpe`, which has up to ROUNDS."""
        if self.method != "tpe":
            return [range(self.size)]
        length = max(LEAST_ROUND, math.ceil(self.size / ROUNDS))
        return [range(first, min(first + length, self.size)) for first in range(0, self.size, length)]

    def says(self, name: str) -> bool:
        """Whether the space or a listed job sets this dimension explicitly."""
        return getattr(self, name) is not None or any(getattr(job, name) is not None for job in self.jobs or ())

    def axes(self) -> dict[str, Sequence[Any]]:
        """The values of each dimension that the space names."""
        axes = {name: getattr(self, name) for name in _AXES}
        return {name: values for name, values in axes.items() if values is not None}

    def places_at(self, number: int) -> dict[str, int]:
        """Of each dimension, the place of its value in the combination with this index; the last dimension varies fastest (as
        in itertools.product)."""
        places = {}
        for name, values in reversed(self.axes().items()):
            number, places[name] = divmod(number, len(values))
        return {name: places[name] for name in self.axes()}

    def expand(self, shared: Mapping[str, Any] = {}) -> Iterator[JobConfig]:
        """Yield the jobs' configurations in job-index order. The same space always gives the same list. Those of later rounds
        are what `random` would take, and stand in until others are proposed.

        `shared` fills in fields that a configuration leaves open.
        """
        if self.jobs is not None:
            return (_config(job.model_dump(exclude_none=True), shared) for job in self.jobs)
        numbers: list[int] | range = range(self.combinations)
        if self.method in ("random", "tpe"):
            numbers = random.Random(self.draw_seed).sample(numbers, self.size)
        return (self.config_at(self.places_at(number), shared) for number in numbers)

    def config_at(self, places: Mapping[str, int], shared: Mapping[str, Any]) -> JobConfig:
        """The configuration that has, of each of `axes`, the value at this place. shared: fields that all have."""
        return _config({name: values[places[name]] for name, values in self.axes().items()}, shared)

    def places_of(self, config: JobConfig) -> dict[str, int]:
        """The inverse of `config_at`, in the order of `axes`. Raises ValueError if the space does not hold the
        configuration."""
        places = {}
        for name, values in self.axes().items():
            if name == "alpha_ratio":
                places[name] = [ratio * config.rank for ratio in values].index(config.alpha)
            else:
                places[name] = list(values).index(getattr(config, name))
        return places


def _config(picked: dict[str, Any], shared: Mapping[str, Any]) -> JobConfig:
    ratio = picked.pop("alpha_ratio", ALPHA_RATIO)
    picked.setdefault("alpha", ratio * picked["rank"])
    return JobConfig.model_validate({**shared, **picked})
