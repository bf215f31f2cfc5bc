"""Whose rank at a rung is certain, among one placement's jobs, by its task's policy. Changes no job."""

from contract.states import JOB_TERMINAL
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.policy.early_exit.policy_interface import Standing, Verdict
from worker.policy.job_record import Stage


def certain_ranks(task: PlacementRun) -> list[tuple[JobRun, Verdict | None]]:
    """Jobs at a rung on which the policy decides now: None continues. A rank is decided once for each rung, and none before the
    base is known, nor at the boundary before the texts of all who stand there are scored, so that decisions do not depend on
    when that happens. Jobs of a search in which a cut can stop nobody are not compared with the base either: whether they have
    scores depends on how many rows their trend has."""
    waiting = [run for run in task.runs if run.record.awaits_rank]
    if not waiting or not (task.base_known and task.base_texts_known):
        return []
    spec = task.placement.spec
    base = task.base_scores if spec.early_exit.ranks(spec.search_space.size) else None
    decided = task.policy.decide_ranks(standings(task), base, task.base_text_scores)
    if any(run.boundary_texts_due for run in waiting):
        waiting = [run for run in waiting if run.record.rungs_decided > 0]
    return [(run, decided[run.index]) for run in waiting if run.index in decided]


def at_boundary(task: PlacementRun) -> list[JobRun]:
    """Jobs that have finished their warmup and still hold arena rows."""
    return [run for run in task.runs if run.stage is Stage.WARMUP and run.record.awaits_rank]


def standings(task: PlacementRun) -> list[Standing]:
    """The contenders at rungs: jobs that finished warmup, even if they ended later, and those that still may."""
    ended = [
        Standing(job.index, (job.warmup_val_loss, *job.rung_losses[1:]), job.boundary_scores, job.boundary_text_scores)
        for job in task.placement.jobs
        if job.status in JOB_TERMINAL and job.warmup_val_loss is not None
    ]
    here = [run for run in task.runs if run.schedule.has_boundary and (run.warmup_val_loss is not None or run.unfinished)]
    coming = [Standing(index, ()) for index in task.unproposed]
    return [*ended, *(_standing(run) for run in here), *coming]


def _standing(run: JobRun) -> Standing:
    return Standing(run.index, run.progress.rung_losses, run.progress.boundary_scores, run.record.text_scores)
