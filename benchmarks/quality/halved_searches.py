"""Searches that try half of a sweep's grid under our early exit, replayed over its curves: a random half, and the half that
`method: tpe` comes to, round by round. They cost the same but for what their own jobs' batches cost. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.quality.early_exit_driver import EarlyExitDriver, schedule_of
from benchmarks.quality.peers import Peer
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.replay import loss_at, replay
from contract.task_spec import TaskSpec
from worker.policy.tpe_proposals import propose

DRAWS = 10
_AXES = ("learning_rate", "rank", "batch_size", "seed", "beta")


def halved_searches(spec: TaskSpec, sweep: Sweep) -> dict[str, Peer]:
    """Both, on average over draws that begin alike; none where the sweep is not of a whole grid. spec: the sweep's, under our
    policy."""
    configs = [curve.config for curve in sweep.curves]
    axes = {axis: list(dict.fromkeys(config[axis] for config in configs)) for axis in _AXES}
    if math.prod(map(len, axes.values())) != len(configs):
        return {}
    axes = {axis: values for axis, values in axes.items() if values != [None]}
    place_of = {tuple(config[axis] for axis in axes): place for place, config in enumerate(configs)}
    told = spec.model_dump(mode="json", exclude={"search_space"})
    read, random_half, rounds = EarlyExitDriver(spec, sweep).parts.full, list[Peer](), list[Peer]()
    for draw in range(DRAWS):
        space = axes | {"method": "tpe", "n": len(configs) // 2, "draw_seed": draw}
        searched = TaskSpec.model_validate(told | {"search_space": space})
        drawn = [place_of[tuple(getattr(job, axis) for axis in axes)] for job in searched.jobs()]
        random_half.append(_searched(spec, sweep, drawn))
        first, *later = searched.search_space.rounds
        tried = drawn[: len(first)]
        for jobs in later:
            known = [(spec.jobs()[place], _at_cut(spec, sweep, place, read)) for place in tried]
            found = propose(searched, known, len(jobs))
            tried += [place_of[tuple(getattr(job, axis) for axis in axes)] for job in found]
        rounds.append(_searched(spec, sweep, tried))
    return {"random_half": _mean(random_half), "tpe_rounds": _mean(rounds)}


def _at_cut(spec: TaskSpec, sweep: Sweep, place: int, rows: int) -> float:
    """What the executor tells the proposals of a job: its loss where its warmup ends, on so many rows."""
    return loss_at(sweep, place, schedule_of(spec, place, sweep.train_rows, None).rungs[0], rows)


def _searched(spec: TaskSpec, sweep: Sweep, places: Sequence[int]) -> Peer:
    """What early exit makes of the jobs at these places alone."""
    jobs = [sweep.curves[place].config for place in places]
    told = spec.model_dump(mode="json", exclude={"search_space"})
    few = TaskSpec.model_validate(told | {"search_space": {"method": "list", "jobs": jobs}})
    curves = [replace(sweep.curves[place], job=index) for index, place in enumerate(places)]
    outcome, _ = replay(few, replace(sweep, curves=curves), spec)
    return Peer(outcome.test.mean if outcome.test is not None else math.inf, outcome.tokens)


def _mean(found: Sequence[Peer]) -> Peer:
    return Peer(fmean(one.unseen for one in found), fmean(one.tokens for one in found))
