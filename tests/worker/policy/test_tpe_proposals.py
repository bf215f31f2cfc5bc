"""Proposals of a tpe search: what it may propose, and that it learns from what was tried."""

import math
import random
from statistics import fmean

import pytest

from contract.job_config import JobConfig
from contract.task_spec import TaskSpec
from worker.policy.tpe_proposals import propose

RATES = [3e-3, 1e-4, 3e-4, 1e-3, 1e-2, 3e-2]  # in no order


def spec_of(**space: object) -> TaskSpec:
    given = {"method": "tpe", "n": 30, "learning_rate": RATES, "rank": [8, 16, 32], "batch_size": [1, 2, 4], "seed": [0, 1]}
    return TaskSpec.model_validate({"base_model": "b", "dataset": {"file_id": "file_1"}, "search_space": given | space})


def distance(config: JobConfig, best: float) -> float:
    return abs(math.log10(config.learning_rate / best)) + 0.1 * config.batch_size


def tried_at_first(spec: TaskSpec, best: float) -> list[tuple[JobConfig, float]]:
    jobs = spec.jobs()
    return [(jobs[index], distance(jobs[index], best)) for index in spec.search_space.rounds[0]]


def test_proposals_are_of_the_space_and_new_and_the_same_again():
    spec = spec_of(draw_seed=random.randrange(10**6))
    tried = tried_at_first(spec, 1e-3)
    found = propose(spec, tried, 10)
    assert found == propose(spec, tried, 10)
    seen = [config for config, _ in tried] + found
    assert len(seen) == len({config.model_dump_json() for config in seen}) == 20
    for config in found:
        assert spec.search_space.config_at(spec.search_space.places_of(config), {"weight_decay": 0.01}) == config


def test_a_space_is_proposed_to_its_last_configuration():
    spec = spec_of(
        n=12, learning_rate=[1e-4, 1e-3, 1e-2], rank=[8], seed=[0], schedule=["linear", "constant"], batch_size=[1, 2]
    )
    tried = tried_at_first(spec, 1e-3)
    found = propose(spec, tried, 12 - len(tried))
    every = {config.model_dump_json() for config in spec.jobs()}
    assert {config.model_dump_json() for config in [*(config for config, _ in tried), *found]} == every


def test_of_what_is_unknown_nothing_is_learned_but_that_it_was_tried():
    spec = spec_of()
    tried = tried_at_first(spec, 1e-3)
    unknown = [(config, None) for config in propose(spec, tried, 3)]
    assert not {config for config, _ in unknown} & set(propose(spec, [*tried, *unknown], 10))
    assert len(set(propose(spec, unknown, 10))) == 10, "drawn, where nothing is known of any"


@pytest.mark.parametrize("best", [3e-4, 3e-3])
def test_rounds_come_closer_to_what_does_well(best):
    """On average over a dozen draws of ten configurations each, against what a random draw takes instead."""
    proposed, drawn = [], []
    for seed in range(12):
        spec = spec_of(draw_seed=seed)
        tried = tried_at_first(spec, best)
        tried += [(config, distance(config, best)) for config in propose(spec, tried, 10)]
        proposed += [distance(config, best) for config in propose(spec, tried, 10)]
        drawn += [distance(config, best) for config in spec.jobs()[20:]]
    assert fmean(proposed) < 0.8 * fmean(drawn)


def test_what_diverged_is_kept_away_from():
    diverged, drawn = 0, 0
    for seed in range(10):
        spec = spec_of(draw_seed=seed)
        jobs = spec.jobs()
        tried = [(job, math.inf if job.learning_rate > 5e-3 else 1.0 + 0.1 * job.batch_size) for job in jobs[:10]]
        diverged += sum(config.learning_rate > 5e-3 for config in propose(spec, tried, 10))
        drawn += sum(config.learning_rate > 5e-3 for config in jobs[10:20])
    assert diverged < 0.75 * drawn


def test_a_search_in_which_all_diverged_goes_on():
    spec = spec_of()
    tried = [(config, math.inf) for config, _ in tried_at_first(spec, 1e-3)]
    assert len(propose(spec, tried, 10)) == 10
