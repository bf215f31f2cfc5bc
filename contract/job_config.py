"""JobConfig: one configuration, which is one adapter to train, and the limits of its numbers.

Knows no data, no objective and no training: only names and numbers, strictly validated.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator

from contract.strict import NO_BOOL, Strict
from contract.values.shares import share_of

MAX_RANK = 256
MAX_BATCH_SIZE = 1024
MAX_SEED = 2**31 - 1

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


def in_order(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """These modules in the order of MODULES. Raises ValueError if one is named twice."""
    if len(set(modules)) != len(modules):
        raise ValueError("names a module more than once")
    return tuple(module for module in MODULES if module in modules)


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
        return in_order(modules)

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
        warmup = share_of(self.lr_warmup_ratio, total_steps)
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


# what stands for the values of a displayed configuration that it lacks, or that cannot be read
STAND_IN = JobConfig(learning_rate=1.0, rank=1, alpha=1.0, batch_size=1, seed=1)
