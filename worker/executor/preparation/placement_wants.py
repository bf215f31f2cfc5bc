"""What a placement wants of its executor: the ranks, steps and dropout that its jobs have, or may have. Values alone."""

from contract.messages.placement_messages import JobAssignment, Placement
from contract.states import JOB_TERMINAL
from worker.replicas.sharding_choice import Wanted


def unfinished(placement: Placement) -> list[JobAssignment]:
    return [job for job in placement.jobs if job.status not in JOB_TERMINAL]


def ranks_of(placement: Placement) -> list[int]:
    """Of each unfinished job; the most that its space has for one whose configuration is still to be proposed."""
    most = max(placement.spec.search_space.rank)
    return [job.config.rank if job.proposed else most for job in unfinished(placement)]


def wants_of(placement: Placement) -> Wanted:
    """What its unfinished jobs want. One whose configuration is still to be proposed may take any rank and dropout of its
    space, and the most rows a step."""
    spec, jobs = placement.spec, unfinished(placement)
    row = spec.training.max_seq_len * (2 if spec.objective.type == "dpo" else 1)
    most = max(spec.search_space.batch_size)
    ranks, dropouts = {job.config.rank for job in jobs if job.proposed}, {job.config.dropout for job in jobs if job.proposed}
    if not all(job.proposed for job in jobs):
        ranks.update(spec.search_space.rank)
        dropouts.update(spec.search_space.dropout)
    return Wanted(
        ranks=tuple(ranks_of(placement)),
        step_tokens=tuple(row * (job.config.batch_size if job.proposed else most) for job in jobs),
        generates=spec.evaluation is not None,
        possible_ranks=frozenset(ranks),
        dropouts=frozenset(share > 0 for share in dropouts),
    )
