"""When the results of evaluations are read: so that the device does not wait for the host between passes, and none is lost."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.worker.model import tiny
from worker.data.dataset import TokenRows
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import LossSum, OutOfMemory, Trainer
from worker.replicas import validation_pass
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult, evaluate, evaluation_passes

BUDGET = 16  # tokens: a pass of two rows


class LoggedTrainer(Trainer):
    """Logs its passes. fails_at: the pass that finds no memory."""

    log: list[str]
    fails_at = 0

    def evaluate(self, segments: Sequence[Segment]) -> list[LossSum]:
        self.log.append("pass")
        if self.log.count("pass") == self.fails_at:
            raise OutOfMemory(1)
        return super().evaluate(segments)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> LoggedTrainer:
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    made = LoggedTrainer(backbone, Arena(backbone.targets, 8))
    made.log, totals = [], validation_pass._totals

    def read(sums: Sequence[LossSum]) -> list[float]:
        made.log.append("read")
        return totals(sums)

    monkeypatch.setattr(validation_pass, "_totals", read)
    return made


def requests(*rows: int) -> dict[int, EvaluationRequest]:
    """Of the base, over so many rows each."""
    return {key: EvaluationRequest(None, TokenRows(tiny.examples([9] * count))) for key, count in enumerate(rows)}


def test_a_result_is_read_once_the_next_pass_is_launched(trainer: LoggedTrainer) -> None:
    wanted = requests(2, 2, 4)
    found = dict(evaluate(trainer, wanted, BUDGET, lambda: trainer.log.append("done")))
    assert trainer.log == ["pass", "done", "pass", "done", "read", "pass", "done", "read", "pass", "done", "read"]
    apart = {key: dict(evaluate(trainer, {key: one}, BUDGET, lambda: None))[key] for key, one in wanted.items()}
    assert found == apart


def test_scores_of_rows_tell_which_are_equal(trainer: LoggedTrainer) -> None:
    one, other = tiny.examples([9, 9])
    for per_row, equal in ((1, [0, 1, 0, 1]), (2, [0, 0])):
        wanted = EvaluationRequest(None, TokenRows([one, other, one, other], per_row), scored="loss")
        if per_row == 2:
            wanted = replace(wanted, beta=0.1, reference=[0.0] * 4)
        scores = dict(evaluate(trainer, {0: wanted}, BUDGET, lambda: None))[0].scores
        assert scores is not None
        assert scores.clusters == equal


def test_over_a_sharded_base_it_is_read_while_the_ranks_are_together(
    trainer: LoggedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backbone, "shards", property(lambda backbone: backbone))
    together = type(trainer.backbone.gathers).together

    @contextmanager
    def logged(*arguments: Any) -> Iterator[None]:
        with together(*arguments):
            yield
        trainer.log.append("apart")

    monkeypatch.setattr(type(trainer.backbone.gathers), "together", logged)
    assert len(dict(evaluate(trainer, requests(2, 4), BUDGET, lambda: None))) == 2
    assert trainer.log == ["pass", "read", "pass", "pass", "read", "apart"]


def test_pass_by_pass_all_results_are_those_of_one_go(trainer: LoggedTrainer) -> None:
    wanted, found = requests(2, 3, 4), dict[int, ValidationResult]()

    def keep(passes: Generator[None, None, dict[int, ValidationResult]]) -> Generator[None, None, None]:
        found.update((yield from passes))

    assert len(list(keep(evaluation_passes(trainer, wanted, BUDGET, lambda: None)))) == 5
    assert found == dict(evaluate(trainer, wanted, BUDGET, lambda: None))


@pytest.mark.parametrize(("fails_at", "complete"), [(1, []), (2, [0]), (3, [0, 1]), (4, [0, 1]), (5, [0, 1])])
def test_what_was_complete_before_memory_ran_out_is_told(trainer: LoggedTrainer, fails_at: int, complete: list[int]) -> None:
    trainer.fails_at, found = fails_at, list[int]()

    def ask() -> None:
        for key, _ in evaluate(trainer, requests(2, 2, 6), BUDGET, lambda: None):
            found.append(key)

    with pytest.raises(OutOfMemory):
        ask()
    assert found == complete


@pytest.mark.parametrize(("fails_at", "whose"), [(1, "first"), (2, None), (3, "last")])
def test_a_pass_without_memory_says_whose_piece_it_was_if_it_held_only_one(
    trainer: LoggedTrainer, fails_at: int, whose: str | None
) -> None:
    """That task's pieces are made smaller. Of several it may be any, and the passes are."""
    trainer.fails_at, wanted = fails_at, requests(2, 1, 3)
    placed = {
        key: replace(one, placement=name) for (key, one), name in zip(wanted.items(), ("first", "beside", "last"), strict=True)
    }
    with pytest.raises(OutOfMemory) as failed:
        list(evaluate(trainer, placed, BUDGET, lambda: None))
    assert failed.value.sole_placement == whose


def test_a_requests_pieces_are_as_long_as_it_says(trainer: LoggedTrainer) -> None:
    (one,) = requests(4).values()
    list(evaluate(trainer, {0: replace(one, piece_tokens=40)}, BUDGET, lambda: None))
    assert trainer.log.count("pass") == 1
    trainer.log.clear()
    list(evaluate(trainer, {0: one}, BUDGET, lambda: None))
    assert trainer.log.count("pass") == 2


def test_scores_are_in_the_order_of_the_rows_whatever_that_of_the_passes(trainer: LoggedTrainer) -> None:
    """The second request's last row shares the first one's last pass, which runs before its own."""
    beside, rows = tiny.examples([9, 9, 9]), tiny.examples([17, 9])
    wanted = {0: EvaluationRequest(None, TokenRows(beside)), 1: EvaluationRequest(None, TokenRows(rows), scored="loss")}
    found = dict(evaluate(trainer, wanted, BUDGET, lambda: None))[1]
    alone = [evaluate(trainer, {0: EvaluationRequest(None, TokenRows([row]))}, BUDGET, lambda: None) for row in rows]
    assert found.scores is not None
    assert found.scores.totals == pytest.approx([dict(one)[0].loss * row.labels for one, row in zip(alone, rows, strict=True)])


def test_a_part_of_pairs_is_that_of_the_first_pairs_alone(trainer: LoggedTrainer) -> None:
    pairs, reference = TokenRows(tiny.examples([9, 8, 7, 9, 8, 9]), per_row=2), [-3.0, -9.0, -30.0, -2.0, -50.0, -8.0]
    asked = EvaluationRequest(None, pairs, beta=0.5, reference=reference, scored="error", part=2)
    first = EvaluationRequest(None, pairs.first(2), beta=0.5, reference=reference[:4])
    found, alone = (dict(evaluate(trainer, {0: one}, BUDGET, lambda: None))[0] for one in (asked, first))
    assert found.part is not None
    assert (found.part.loss, found.part.accuracy, found.part.margin) == pytest.approx(
        (alone.loss, alone.accuracy, alone.margin)
    )
    assert found.scores is not None
    assert len(found.scores.totals) == 3
