"""What the base and the kept adapters wrote to the same prompts, side by side, with their scores."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from contract.task_spec import VAL_LOSS
from contract.wording.generated_text_words import remarks, shortened
from service.tasks.milestone_evaluations import milestone_scores
from service.tasks.models import Task
from service.tasks.stored_specs import cut_metric_of, effective, part
from service.tasks.text_evaluations import (
    TextEvaluationResource,
    TextSampleResource,
    TextScores,
    evaluations_of,
    scores_of_task,
)
from service.tenants.api_keys import Principal

MOST_SHOWN = 4  # adapters whose texts are on the page, the best by the score of the first metric or what is selected by
_LONGEST = 1000  # characters of a prompt, a reference and a text


@dataclass(frozen=True)
class Answer:
    """One text. whose: of the base or of a job; best: of the winner. unfinished: cut at max_new_tokens."""

    whose: str
    best: bool
    text: str
    unfinished: bool
    scores: list[tuple[str, float]]


@dataclass(frozen=True)
class Prompt:
    prompt: str
    reference: str
    answers: list[Answer]


@dataclass(frozen=True)
class ScoreRow:
    """An evaluation's means in the order of the table's metrics; None: not scored. step: that the weights are of. remarks: why
    there are none, what counts as 0, and what endpoints have still to grade."""

    whose: str
    step: int | None
    best: bool
    values: list[float | None]
    remarks: str


@dataclass(frozen=True)
class ScoreTable:
    metrics: list[str]
    rows: list[ScoreRow]
    prompts: int


@dataclass(frozen=True)
class GeneratedTexts:
    """A task's. asked: whether its spec asks for any; selected: the metric that its winner is chosen by, if it is one of texts;
    cut: whether that also decides who goes on after warmup;
    milestones: scores in the midst of training, job by job; pairwise: the winner's texts against the base's, in sentences;
    left_out: adapters whose texts are not on the page."""

    asked: bool
    selected: str | None
    cut: bool
    table: ScoreTable
    prompts: list[Prompt]
    milestones: ScoreTable
    pairwise: list[str]
    left_out: int


def generated_texts(session: Session, reader: Principal, task: Task, winner: int | None) -> GeneratedTexts:
    """winner: its job's index."""
    found, metric = scores_of_task(session, reader, task.id), str(effective(task).get("select_by", VAL_LOSS))
    shown = shown_jobs(found, winner, metric)
    return GeneratedTexts(
        asked=bool(part(task, "evaluation")),
        selected=metric if metric != VAL_LOSS else None,
        cut=cut_metric_of(task) is not None,
        table=score_table(found, winner),
        prompts=prompts(evaluations_of(session, reader, task.id, shown), winner) if found else [],
        milestones=score_table(milestone_scores(session, reader, task.id), winner),
        pairwise=[str(one["sentence"]) for one in (task.selection or {}).get("pairwise", ())],
        left_out=sum(one.job_id is not None and bool(one.scores) for one in found) - len(shown),
    )


def score_table(found: Sequence[TextScores], winner: int | None) -> ScoreTable:
    """All scores, the base's first."""
    metrics = sorted({name for one in found for name in one.scores})
    rows = [
        ScoreRow(
            whose=_whose(one),
            step=one.step,
            best=_wins(one, winner),
            values=[one.scores.get(name) for name in metrics],
            remarks=remarks(one.error, one.notes, one.pending),
        )
        for one in found
    ]
    return ScoreTable(metrics, rows, max((one.prompts for one in found), default=0))


def shown_jobs(found: Sequence[TextScores], winner: int | None, metric: str) -> list[str]:
    """The jobs whose texts the page holds: the winner's, then the best by this metric, or by the first one that there is."""
    names = sorted({name for one in found for name in one.scores})
    by = metric if metric in names else names[0] if names else ""
    scored = [one for one in found if one.job_id is not None and by in one.scores]
    ranked = sorted(scored, key=lambda one: (not _wins(one, winner), -one.scores[by], one.index))
    return [one.job_id for one in ranked[:MOST_SHOWN] if one.job_id is not None]


def prompts(found: Sequence[TextEvaluationResource], winner: int | None) -> list[Prompt]:
    """Each prompt with the texts of the base and of these jobs, the base's first, then the winner's."""
    ordered = sorted(found, key=lambda one: (one.index is not None, not _wins(one, winner), one.index or 0))
    most = max((len(one.samples) for one in ordered), default=0)
    return [_prompt([one for one in ordered if place < len(one.samples)], place, winner) for place in range(most)]


def _prompt(found: Sequence[TextEvaluationResource], place: int, winner: int | None) -> Prompt:
    first = found[0].samples[place]
    return Prompt(
        prompt=shortened(first.prompt, _LONGEST, keep_end=True),
        reference=shortened(first.reference, _LONGEST),
        answers=[_answer(one, one.samples[place], winner) for one in found],
    )


def _answer(one: TextEvaluationResource, sample: TextSampleResource, winner: int | None) -> Answer:
    return Answer(
        whose=_whose(one),
        best=_wins(one, winner),
        text=shortened(sample.text, _LONGEST),
        unfinished=sample.finish_reason == "length",
        scores=sorted(sample.scores.items()),
    )


def _whose(one: TextScores | TextEvaluationResource) -> str:
    return "the base alone" if one.index is None else f"job {one.index}"


def _wins(one: TextScores | TextEvaluationResource, winner: int | None) -> bool:
    return one.index is not None and one.index == winner
