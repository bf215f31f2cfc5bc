"""Proposes configurations by how earlier ones did: a tree-structured Parzen estimator (Bergstra et al. 2011), Optuna's.

Pure: what was tried in, configurations out; the same for the same input. Knows no curves and no executor. Importing it takes a
second, for Optuna.
"""

import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import create_trial

from contract.job_config import JobConfig
from contract.task_spec import TaskSpec

_ASKS = 20  # for a configuration that was not tried, before one is drawn at random
_WORST = 1e9  # what a configuration counts as that diverged or failed
_GOOD = 0.25  # the part of what was tried that proposals should be like: what early exit keeps by default
optuna.logging.set_verbosity(optuna.logging.ERROR)
# Optuna's own part is a tenth, one configuration of a first round; pyproject.toml keeps Optuna below the version without it
warnings.filterwarnings("ignore", message="`gamma` has been deprecated", category=FutureWarning)


def propose(spec: TaskSpec, tried: Sequence[tuple[JobConfig, float | None]], count: int) -> list[JobConfig]:
    """`count` configurations of the task's search space, none of which was tried; the space must have as many left.

    tried: each with its validation score where its warmup ended, of which lower is better; inf where it has none, since it
    diverged or failed; None where its training is too short for a boundary, which says nothing of it. Numbers are proposed by
    their order, not by their size: a learning rate's neighbours are those beside it in the space. The estimator keeps away from
    what this call has proposed before (its constant liar).
    """
    space, seed = spec.search_space, spec.search_space.draw_seed + len(tried)
    axes = {name: _in_order(values) for name, values in space.axes().items()}
    open_axes = {name: _distribution(space.axes()[name]) for name, order in axes.items() if len(order) > 1}
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, gamma=_good, multivariate=True, constant_liar=True)
    )
    taken = set[tuple[int, ...]]()
    for config, value in tried:
        places = space.places_of(config)
        taken.add(tuple(places.values()))
        if value is None:
            continue
        params = {name: axes[name].index(places[name]) for name in open_axes}
        value = value if math.isfinite(value) else _WORST
        study.add_trial(create_trial(value=value, params=params, distributions=open_axes))

    def asked() -> dict[str, int]:
        for _ in range(_ASKS):
            params = study.ask(open_axes).params
            places = {name: order[params.get(name, 0)] for name, order in axes.items()}
            if tuple(places.values()) not in taken:
                return places
        sample = random.Random(seed + len(taken)).sample(range(space.combinations), len(taken) + 1)
        return next(places for number in sample if tuple((places := space.places_at(number)).values()) not in taken)

    found = []
    for _ in range(count):
        places = asked()
        taken.add(tuple(places.values()))
        found.append(spec.job_at(places))
    return found


def _good(tried: int) -> int:
    return max(1, math.ceil(_GOOD * tried))


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _in_order(values: Sequence[Any]) -> list[int]:
    """The places of the values, numbers ascending."""
    return sorted(range(len(values)), key=values.__getitem__) if _numeric(values) else list(range(len(values)))


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    last = len(values) - 1
    return IntDistribution(0, last) if _numeric(values) else CategoricalDistribution(range(last + 1))
