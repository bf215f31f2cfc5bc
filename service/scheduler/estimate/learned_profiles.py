"""Stores what the fleet has learned: step times and job survival. throughput.py and survival.py do the arithmetic."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.messages.report_messages import Throughput
from service.scheduler.estimate import survival, throughput
from service.scheduler.estimate.survival import NOTHING, JobLifetimes, ReportedProgress
from service.scheduler.estimate.throughput import ProfileKey, StepTimeProfile
from service.scheduler.models import SurvivalRow, ThroughputProfile


def profiles(session: Session, bases: Collection[str]) -> dict[ProfileKey, StepTimeProfile]:
    """All profiles of these bases, in a fixed order."""
    rows = select(ThroughputProfile).where(ThroughputProfile.base_model.in_(bases))
    return {
        ProfileKey(row.base_model, row.precision, row.device_type, row.tokens, row.rows, row.width): StepTimeProfile(
            row.mean_tokens, row.log_seconds, row.variance, row.measured
        )
        for row in session.scalars(rows.order_by(ThroughputProfile.tokens, ThroughputProfile.rows, ThroughputProfile.width))
    }


def lives(session: Session, classes: Collection[str]) -> Mapping[str, JobLifetimes]:
    """Exits and phases lived by ended tasks of these shape classes."""
    found: dict[str, JobLifetimes] = defaultdict(lambda: NOTHING)
    for row in session.scalars(select(SurvivalRow).where(SurvivalRow.shape_class.in_(classes))):
        found[row.shape_class] = JobLifetimes(row.warm_exits, row.warm_lived, row.late_exits, row.late_lived)
    return found


def note_steps(session: Session, base: str, precision: str, kind: str, width: int, done: Sequence[Throughput]) -> list[int]:
    """Add measurements of a base's steps on a device type, in a placement with `width` devices. Returns for each that is not
    empty how many of such steps there are by then. Several profiles are locked in the order of their keys."""
    found = [measurement for one in done if (measurement := _measurement(base, precision, kind, width, one)) is not None]
    found.sort(key=lambda one: (one[0].tokens, one[0].rows))
    return [_note_step(session, *one) for one in found]


def _measurement(base: str, precision: str, kind: str, width: int, done: Throughput) -> tuple[ProfileKey, float, float] | None:
    """Of such steps: their profile, and one step's tokens and seconds; None if there were none.

    Excludes evaluations: task_duration.py counts them separately. Of steps that tasks shared, the whole step counts.
    """
    steps, seconds = done.steps, done.seconds
    if done.device_steps is not None and done.device_seconds is not None:
        steps, seconds = done.device_steps, done.device_seconds
    if steps <= 0 or done.tokens <= 0 or seconds <= 0:
        return None
    whole = done.seconds / done.share_seconds if done.share_seconds else 1.0  # of shared steps, which are divided by tokens
    tokens = whole * done.tokens / steps
    return throughput.key_of(base, precision, kind, tokens, whole * done.rows / steps, width), tokens, seconds / steps


def _note_step(session: Session, key: ProfileKey, tokens: float, seconds: float) -> int:
    own = {"base_model": key.base, "precision": key.precision, "device_type": key.gpu, "tokens": key.tokens, "rows": key.rows}
    own |= {"width": key.width}
    blank = {"mean_tokens": 0.0, "log_seconds": 0.0, "variance": 0.0, "measured": 0}
    session.execute(insert(ThroughputProfile).values(**own, **blank).on_conflict_do_nothing())
    row = session.get_one(ThroughputProfile, tuple(own.values()), with_for_update=True, populate_existing=True)
    before = StepTimeProfile(row.mean_tokens, row.log_seconds, row.variance, row.measured) if row.measured else None
    after = throughput.measured(before, tokens, seconds)
    row.mean_tokens, row.log_seconds, row.variance, row.measured = (
        after.tokens,
        after.log_seconds,
        after.variance,
        after.measured,
    )
    return after.measured


def note_ended(session: Session, shape_class: str, jobs: Collection[ReportedProgress]) -> None:
    """Add the lives of an ended task's jobs to its class."""
    blank = dict.fromkeys(("warm_exits", "warm_lived", "late_exits", "late_lived"), 0.0)
    session.execute(insert(SurvivalRow).values(shape_class=shape_class, **blank).on_conflict_do_nothing())
    row = session.get_one(SurvivalRow, shape_class, with_for_update=True, populate_existing=True)
    before = JobLifetimes(row.warm_exits, row.warm_lived, row.late_exits, row.late_lived)
    after = survival.learned(before, survival.lived(jobs))
    row.warm_exits, row.warm_lived, row.late_exits, row.late_lived = (
        after.warm_exits,
        after.warm_lived,
        after.late_exits,
        after.late_lived,
    )
