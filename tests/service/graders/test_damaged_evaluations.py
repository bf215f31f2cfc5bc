"""An evaluation's row that can be read in part gets the scores that graders give, as far as that goes."""

import json

import pytest
from sqlalchemy import text

from service.background.reconciler import grader_courier_of
from tests.service.graders.conftest import evaluations, wrote

NEWER = [{"prompt": "0?", "text": "maybe", "reference": "yes", "finish_reason": "refused", "scores": {}}]


@pytest.fixture
def graded(tenant, placed, courier, database):
    """Grade two texts of the base after a column of their evaluation was damaged; the evaluation, and its stored columns."""

    def act(column, value):
        taken = placed()
        taken.report(wrote(None, "maybe", "maybe"))
        with database.begin() as session:
            said = text(f"UPDATE text_evaluations SET {column} = CAST(:v AS jsonb) WHERE task_id = :id")
            session.execute(said, {"v": json.dumps(value), "id": taken.given.task_id})
        assert courier.work_off_due() == 2
        with database.begin() as session:
            said = text("SELECT scores, samples, notes, prompt_scores FROM text_evaluations WHERE task_id = :id")
            stored = session.execute(said, {"id": taken.given.task_id}).one()
        (base,) = evaluations(tenant, taken)
        assert base["pending"] == {}
        return base, stored

    return act


@pytest.mark.parametrize(("column", "value"), [("samples", NEWER), ("samples", 3), ("notes", {"n": 3})])
def test_beside_what_cannot_be_read(graded, column, value):
    base, stored = graded(column, value)
    assert base["scores"] == {"exact_match": 0.0, "judge": 0.5}
    assert stored.prompt_scores["judge"] == [0.5, 0.5]
    assert getattr(stored, column) == value, "what a newer version wrote stays"
    assert f"the stored {column} of this evaluation cannot be read" in base["notes"]


def test_scores_that_cannot_be_read(graded):
    base, stored = graded("scores", {"exact_match": "none"})
    assert (base["scores"], stored.scores) == ({}, {"exact_match": "none"})
    assert stored.prompt_scores["judge"] == [0.5, 0.5]
    assert [sample["scores"]["judge"] for sample in base["samples"]] == [0.5, 0.5]
    assert "metric 'judge' has the mean 0.5, which" in base["notes"][0]


@pytest.mark.parametrize("value", [None, 3, {"judge": "high"}])
def test_scores_by_prompt_that_cannot_be_read(graded, value):
    base, stored = graded("prompt_scores", value)
    assert base["scores"] == {"exact_match": 0.0, "judge": 0.5}
    assert stored.prompt_scores == value


def test_a_grading_that_nobody_can_finish_keeps_no_other_from_it(tenant, placed, dependencies, monkeypatch, caplog):
    first, other = placed(), placed()
    for taken in (first, other):
        taken.report(wrote(None, "maybe", "maybe"))
    courier = grader_courier_of(dependencies)
    (finish, broken) = courier._finish, list[str]()

    def unforeseen(grading_id):
        if not broken or grading_id in broken:
            broken.append(grading_id)
            raise ValueError("nobody foresaw this")
        finish(grading_id)

    monkeypatch.setattr(courier, "_finish", unforeseen)
    assert courier.work_off_due() == 4
    courier.sweep()
    assert len(broken) == 2, "as its last text was graded, and at the next look"
    left = [len(evaluations(tenant, taken)[0]["pending"]) for taken in (first, other)]
    assert sorted(left) == [0, 1]
    assert "nobody foresaw this" in caplog.text
