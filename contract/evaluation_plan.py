"""How many validation rows are read when, so that a search's evaluations stay within their share of its tokens.

Validation rows come in nested parts. A trend evaluation reads the small one, which shows how a job's loss develops. A full
evaluation reads the large one: at the cut after warmup, and at the end of a job that keeps an adapter. Pure arithmetic in rows;
knows no data and no spec.
"""

from dataclasses import dataclass

from contract.row_scores import MAX_SCORED_ROWS

EVALUATIONS = 30  # per job, roughly, where rows allow: chosen together with guard_patience (docs/NUMERICS.md)
LEAST_EVALUATIONS = 5  # so that a job's best step is one of several
LEAST_FULL = 32  # rows, where there are as many; fewer would rank jobs by chance, whatever they cost
LEAST_TREND = 8
_MOST_TREND_ROWS = 128
_TREND_ROWS = 12  # a part smaller than this would place a job's best step by chance: evaluations get fewer instead
_FULL = 0.75  # of the budget: with 3 epochs it is a fifth of the rows at the cut, and again for the most that can pass it


@dataclass(frozen=True)
class Course:
    """A job's evaluations. jobs: of its task, which share the base's own; cuts: at how many steps it is ranked; before, after:
    evaluations of its trend up to the first cut and past it."""

    jobs: int
    rows_trained: int
    cuts: int
    before: int
    after: int


@dataclass(frozen=True)
class EvaluationPlan:
    """full: validation rows that a full evaluation reads, at a cut and at a job's end. trend: how many of these, the first,
    every other evaluation reads."""

    full: int
    trend: int

    def rows(self, course: Course, passing: float) -> float:
        """Validation rows that a job reads on average, with its part of the base's evaluation, where at most the fraction
        `passing` of the jobs passes a cut."""
        cuts = sum(passing**cut for cut in range(course.cuts))
        ends = passing if course.cuts else 1.0
        return self.full * (cuts + ends + 1 / course.jobs) + self.trend * (course.before + ends * course.after)


def evaluations_for(share: float | None, passing: float, warmup: float, rows_trained: int) -> int:
    """How often a job's trend is evaluated: EVALUATIONS times, or as often as the budget has _TREND_ROWS for. warmup: the
    fraction of the steps before the cut; passing: the fraction of the jobs that may pass it."""
    if share is None:
        return EVALUATIONS
    reached = warmup + passing * (1 - warmup)
    affordable = (1 - _FULL) * share * rows_trained / (_TREND_ROWS * reached)
    return max(LEAST_EVALUATIONS, min(EVALUATIONS, int(affordable)))


def plan_evaluations(
    share: float | None, passing: float, courses: list[Course], validation_rows: int, row_cost: float = 1.0
) -> EvaluationPlan:
    """The largest parts whose evaluations take at most `share` of the tokens that full training of all jobs would take, or the
    smallest parts allowed where these take more: 32 rows of a full evaluation and 8 of the trend, as far as there are rows.
    courses: of each kind of job; row_cost: tokens of a validation row over those of a training row.

    The bound holds for every kind of job by itself, on average over the jobs of that kind, and so for all of them.
    """
    most = min(validation_rows, MAX_SCORED_ROWS)
    if share is None:
        return EvaluationPlan(most, most)
    full, trend = most, min(most, _MOST_TREND_ROWS)
    for course in courses:
        budget = share * course.rows_trained / row_cost
        left = min(_FULL * budget, budget - EvaluationPlan(0, LEAST_TREND).rows(course, passing))
        full = min(full, int(left / EvaluationPlan(1, 0).rows(course, passing)))
    full = max(full, min(most, LEAST_FULL))
    for course in courses:
        budget = share * course.rows_trained / row_cost - EvaluationPlan(full, 0).rows(course, passing)
        each = EvaluationPlan(0, 1).rows(course, passing)
        trend = min(trend, int(budget / each) if each else trend)
    return EvaluationPlan(full, max(min(full, trend), min(full, LEAST_TREND)))
