"""What bounds grading: tenants' calls at once, graders' rates, a day; and what a deletion and the retention leave."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import event, func, select, text, update
from sqlalchemy.exc import OperationalError

from service.background.resealing import run as reseal
from service.background.retention import Retention, forget
from service.database.engine import Database
from service.graders import waiting_texts
from service.graders.endpoint_call import Graded
from service.graders.endpoint_graders import box_of, opened
from service.graders.grader_courier import SLOTS
from service.graders.models import EndpointGrader, GradedText, TextGrading
from service.graders.text_claims import OF_TENANT, TextClaims
from service.tasks.lifecycle.graded_scores import finish
from service.tasks.models import Task
from tests.service.graders.conftest import evaluations, finished, wrote
from tests.service.graders.grader_server import GraderServer, by_length
from tests.service.live_server import PATIENCE
from tests.service.webhooks.serving import serving


def test_a_tenants_calls_at_once_are_bounded_and_delay_no_other_tenants(new_tenant, placed, grader, courier):
    """One tenant's endpoint hangs on all that it may be asked at once; the other's texts are graded meanwhile."""
    slow, quick = new_tenant(), new_tenant()
    stuck, hanging = threading.Event(), threading.Semaphore(0)

    def answers(asked):
        hanging.release()
        stuck.wait(PATIENCE)
        return by_length(asked)

    grader.answers = answers
    texts = ["text"] * (2 * OF_TENANT)
    placed(slow).report(wrote(None, *texts), wrote(0, *texts))
    with serving(GraderServer()) as other:
        theirs = placed(quick, url=other.url)
        courier.wake()
        for _ in range(OF_TENANT):
            assert hanging.acquire(timeout=PATIENCE)
        done = threading.Event()
        other.answers = lambda asked: (len(other.asked) == 5 and done.set()) or by_length(asked)
        theirs.report(wrote(None, *("text" for _ in range(5))))
        courier.wake()
        assert done.wait(PATIENCE)
        assert (grader.most_at_once, len(grader.asked)) == (OF_TENANT, OF_TENANT)
        stuck.set()
        courier.close(seconds=PATIENCE)


def test_a_slot_that_becomes_free_goes_to_the_tenant_with_the_fewest_calls(new_tenant, placed, dependencies):
    claims, texts = TextClaims(dependencies.db, 3600), ["slow"] * (OF_TENANT + 2)
    for _ in range(2):
        placed(new_tenant()).report(wrote(None, *texts))
    full = claims.take(SLOTS).rows
    assert len(full) == SLOTS
    placed(new_tenant()).report(wrote(None, "quick"))
    claims.record(full[0], Graded(1.0))
    assert [one.text.text for one in claims.take(1).rows] == ["quick"]


def test_a_grading_that_cannot_be_finished_keeps_no_text_from_being_sent(tenant, placed, grader, courier):
    finish, taken = courier._finish, placed()
    stuck = []

    def fails(grading_id: str) -> None:
        stuck.append(grading_id)
        raise OperationalError("UPDATE", {}, OSError("gone"))

    courier._finish = fails
    taken.report(wrote(None, "maybe"))
    assert courier.work_off_due() == 1
    courier._finish = lambda grading_id: fails(grading_id) if grading_id in stuck else finish(grading_id)
    taken.report(wrote(0, "yes"))
    assert courier.work_off_due() == 1
    assert [one["pending"] for one in evaluations(tenant, taken)] == [{"judge": 0}, {}]
    courier._finish = finish
    assert courier.work_off_due() == 0
    assert [one["scores"]["judge"] for one in evaluations(tenant, taken)] == [0.5, pytest.approx(0.3)]


def test_more_waiting_texts_than_a_tenant_may_have_are_not_kept(tenant, placed, courier, monkeypatch):
    monkeypatch.setattr(waiting_texts, "MOST_WAITING", 20)  # bytes; a text here has ten, with prompt and reference
    taken = placed()
    taken.report(wrote(None, "maybe"), wrote(0, "maybe", "maybe"))
    base, job = evaluations(tenant, taken)
    assert (base["pending"], base["notes"], job["pending"]) == ({"judge": 1}, [], {})
    assert job["notes"][0].startswith("metric 'judge' has no result: at most")
    assert courier.work_off_due() == 1
    taken.report(wrote(0, "maybe", "maybe"))
    assert evaluations(tenant, taken)[1]["pending"] == {"judge": 2}


def test_a_claim_and_a_report_lock_graders_before_texts(placed, database, settings):
    """So that none deadlocks with a deletion, which does too."""
    taken = placed()
    taken.report(wrote(None, "maybe"))
    waits = Database(settings.database_url, pool_size=1)
    event.listen(waits.engine, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL lock_timeout = 100"))
    with database.begin() as session:
        (grader,) = waiting_texts.lock_graders(session, EndpointGrader.task_id == taken.given.task_id)
        grading = session.scalars(select(TextGrading).where(TextGrading.grader_id == grader)).one()
        session.execute(update(TextGrading).where(TextGrading.id == grading.id).values(give_up_at=func.clock_timestamp()))
    with database.begin() as session:
        waiting_texts.lock_graders(session, EndpointGrader.id == grader)
        with pytest.raises(OperationalError, match="lock timeout"):
            finish(waits, grading.id)
        with pytest.raises(OperationalError, match="lock timeout"), waits.begin() as other:
            waiting_texts.add(other, grading.tenant_id, grading.task_id, (None, None), [])
    with database.begin() as session:
        until = func.clock_timestamp() + timedelta(hours=1)
        session.execute(update(TextGrading).where(TextGrading.id == grading.id).values(give_up_at=until))
    with database.begin() as session:
        waiting_texts.lock_graders(session, EndpointGrader.id == grader)
        with pytest.raises(OperationalError, match="lock timeout"):
            TextClaims(waits, 3600).take(1)
    waits.engine.dispose()


def test_texts_of_a_task_that_the_version_before_deleted_are_not_sent(placed, grader, courier, database):
    taken = placed()
    finished(taken, ("yes", "maybe"), ("yes", "yes!"))
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == taken.given.task_id).values(deleted_at=func.clock_timestamp()))
    assert (courier.work_off_due(), grader.asked) == (0, [])


def test_a_graders_rate_lets_one_text_go_at_a_time(placed, dependencies, due, database):
    placed(rate_limit=4).report(wrote(None, "one", "two"))
    claims = TextClaims(dependencies.db, 3600)
    first = claims.take(16)
    assert len(first.rows) == 1
    with database.begin() as session:  # however long that took
        session.execute(update(EndpointGrader).values(next_call_at=func.clock_timestamp() + timedelta(hours=1)))
    second = claims.take(16)
    assert (len(second.rows), 0 < second.seconds <= 3600) == (0, True)
    due()
    third = claims.take(16)
    assert len(third.rows) == 1
    assert third.seconds is None or third.seconds <= 1 / 4


def test_a_courier_sends_all_texts_of_a_grader_with_a_rate(tenant, placed, grader, courier):
    taken = placed(rate_limit=50)
    taken.report(wrote(None, *("text" for _ in range(6))))
    assert courier.work_off_due() == 6
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == pytest.approx(0.4)


def test_after_a_day_a_metric_goes_without_the_texts_that_are_left(tenant, placed, grader, courier, database):
    taken = placed()
    taken.report(wrote(None, "maybe"))
    with database.begin() as session:
        session.execute(update(TextGrading).values(give_up_at=func.clock_timestamp()))
    assert courier.work_off_due() == 0
    (base,) = evaluations(tenant, taken)
    assert base["notes"] == ["metric 'judge' has no result: 1 of 1 texts could not be graded (1: time was up)"]
    assert (base["pending"], grader.asked) == ({}, [])


def test_a_deleted_tasks_texts_are_forgotten_at_once(tenant, placed, grader, courier, database):
    taken = placed()
    finished(taken, ("yes", "maybe"), ("yes", "yes!"))
    assert tenant.delete(f"/v1/tasks/{taken.given.task_id}").status_code == 204
    with database.begin() as session:
        for table in (EndpointGrader, TextGrading, GradedText):
            assert session.scalar(select(func.count()).select_from(table)) == 0
    assert (courier.work_off_due(), grader.asked) == (0, [])


def test_headers_are_kept_until_the_last_text_of_an_ended_task_is_graded(tenant, placed, courier, dependencies, settings):
    taken, other = placed(headers={"X-Key": "k"}), placed(headers={"X-Key": "k"})
    finished(taken, ("yes", "maybe"), ("yes", "yes!"))
    forget(dependencies.db, Retention.of(settings))
    assert left(dependencies) == {taken.given.task_id, other.given.task_id}
    courier.work_off_due()
    forget(dependencies.db, Retention.of(settings))
    assert left(dependencies) == {other.given.task_id}


def left(dependencies) -> set[str]:
    with dependencies.db.begin() as session:
        return set(session.scalars(select(EndpointGrader.task_id)))


def test_headers_are_sealed_anew_under_a_new_key(placed, settings, settings_for, database_url, tmp_path, database):
    placed(headers={"X-Key": "value"})
    old = settings.secret_key
    renewed = settings_for(database_url, tmp_path, secret_keys_before=(old,))
    reseal(renewed)
    with database.begin() as session:
        sealed = session.scalars(select(EndpointGrader.headers)).one()
    assert opened(box_of(renewed.model_copy(update={"secret_keys_before": ()})), sealed) == {"X-Key": "value"}


def test_a_tenant_sees_no_other_tenants_texts_and_scores(tenant, new_tenant, placed, settings, grader):
    """Neither by the API nor as the API's role in the database."""
    taken, other = placed(), new_tenant()
    taken.report(wrote(None, "maybe"))
    assert other.get(f"/v1/tasks/{taken.given.task_id}/evaluations").status_code == 404
    app = Database(settings.app_database_url, pool_size=1)
    for whose, seen in ((tenant, 1), (other, 0)):
        with app.for_tenant(whose.tenant_id).begin() as session:
            for table in ("endpoint_graders", "text_gradings", "graded_texts"):
                assert session.scalar(text(f"SELECT count(*) FROM {table}")) == seen
    app.engine.dispose()
