"""Endpoint graders: every text is sent, scores come to the evaluation after the task's end, what fails is told in the notes."""

import io
import json
import socket
import tarfile
import threading

import pytest
from sqlalchemy import func, select

from service.graders.models import EndpointGrader, GradedText, TextGrading
from service.graders.text_claims import WAITS
from service.http.outbound import Outbound
from tests.service.graders.conftest import HERE, evaluations, finished, wrote
from tests.service.graders.grader_server import Answer, by_length, scored
from tests.service.live_server import PATIENCE

SECRET = "Bearer s3cr3t"


def rows(database) -> tuple[int, int]:
    """Gradings, and texts that wait."""
    with database.begin() as session:
        return tuple(session.scalar(select(func.count()).select_from(table)) for table in (TextGrading, GradedText))


def of_task(tenant, taken) -> dict:
    return tenant.get(f"/v1/tasks/{taken.given.task_id}").json()


def test_scores_come_after_the_end_to_where_all_scores_are(tenant, placed, grader, courier, database):
    taken = placed(headers={"Authorization": SECRET})
    finished(taken, ("yes", "maybe"), ("yes", "yes!"))
    task = of_task(tenant, taken)
    assert (task["status"], grader.asked) == ("succeeded", [])
    before = evaluations(tenant, taken)
    assert [one["pending"] for one in before] == [{"judge": 2}] * 3
    assert [set(one["scores"]) for one in before] == [{"exact_match"}] * 3
    assert courier.work_off_due() == 6
    found = evaluations(tenant, taken)
    assert [one["scores"]["judge"] for one in found] == pytest.approx([0.2, 0.4, 0.35])
    assert [one["scores"]["exact_match"] for one in found] == [0, 0.5, 0.5]
    assert [sample["scores"]["judge"] for sample in found[1]["samples"]] == [0.3, 0.5]
    assert [(one["pending"], one["notes"]) for one in found] == [({}, [])] * 3
    assert rows(database) == (0, 0)
    assert courier.work_off_due() == 0
    lines = tenant.get(f"/v1/tasks/{task['id']}/evaluations.csv").text.splitlines()
    assert [line.split(",")[0] for line in lines if ",judge," in line] == ["", "0", "1"]
    stream = tenant.get(f"/v1/tasks/{task['id']}/events").text.splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in stream if line.startswith("data: ")]
    graded = [(one["type"], one["data"]["scores"]["judge"]) for one in told if "judge" in one["data"].get("scores", {})]
    assert sorted(graded) == [("adapter", 0.35), ("adapter", 0.4), ("base", 0.2)]
    after = of_task(tenant, taken)
    assert after["version"] > task["version"]
    wins = {one["metric"]: (one["wins"], one["ties"], one["losses"]) for one in after["selection"]["pairwise"]}
    assert wins == {"exact_match": (1, 1, 0), "judge": (2, 0, 0)}
    with tarfile.open(fileobj=io.BytesIO(tenant.get(f"/v1/tasks/{task['id']}/adapter").content)) as folder:
        readme = folder.extractfile(next(name for name in folder.getnames() if name.endswith("README.md"))).read().decode()
    assert "| job 0 (this one) | 0.5000 | 0.4000 |" in readme
    assert "By judge the adapter's text is better than the base's on 2 prompts" in readme


def test_a_text_is_asked_about_as_openais_graders_are(placed, grader, courier):
    placed(headers={"Authorization": SECRET, "X-Team": "a b"}).report(wrote(None, "maybe"))
    courier.work_off_due()
    (asked,) = grader.asked
    answer = {"index": 0, "message": {"role": "assistant", "content": "maybe"}, "finish_reason": "stop"}
    assert asked["sample"] == {"output_text": "maybe", "choices": [answer]}
    assert asked["item"] == {"prompt": "0?", "completion": "yes"}
    assert asked["trace_id"].startswith("trace_")
    headers = grader.headers[0]
    assert (headers["authorization"], headers["x-team"], headers["content-type"]) == (SECRET, "a b", "application/json")


def test_headers_are_sealed_and_nobody_is_shown_them(tenant, placed, database):
    taken = placed(headers={"Authorization": SECRET})
    shown = of_task(tenant, taken)["spec"]
    judge = shown["evaluation"]["metrics"][1]
    assert judge["headers"] == {"Authorization": "**********"}
    assert SECRET not in taken.given.model_dump_json()
    assert taken.given.spec.evaluation.endpoints[0].headers == judge["headers"]
    with database.begin() as session:
        sealed = session.scalars(select(EndpointGrader.headers).where(EndpointGrader.task_id == taken.given.task_id)).one()
        stored = session.execute(select(func.row_to_json(EndpointGrader.__table__.table_valued()))).all()
    assert b"s3cr3t" not in sealed
    assert SECRET not in str(stored)
    refused = tenant.post("/v1/tasks", json={name: value for name, value in shown.items() if value is not None})
    assert refused.status_code == 422
    assert [(one["field"], one["code"]) for one in refused.json()["errors"]] == [
        ("evaluation.metrics[1].headers.Authorization", "value_hidden")
    ]


PRIVATE = "its host has an address that is not public; public addresses alone are called"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(404), "answered 404"),
        (Answer(200, b"0.5"), 'answered no JSON object with a number "score"'),
        (Answer(200, b"<html>"), 'answered no JSON object with a number "score"'),
        (Answer(200, b"[" * 60000), 'answered no JSON object with a number "score"'),
        (scored("0.5"), 'answered no JSON object with a number "score"'),
        (scored(True), 'answered no JSON object with a number "score"'),
        (scored(7), "answered a score that is not from 0 to 1"),
        (scored(-0.1), "answered a score that is not from 0 to 1"),
        (scored(float("nan")), "answered a score that is not from 0 to 1"),
        (scored(float("inf")), "answered a score that is not from 0 to 1"),
        (scored(10**400), "answered a score that is not from 0 to 1"),
        (scored(-(10**400)), "answered a score that is not from 0 to 1"),
        (Answer(200, b'{"score": 1' + b"0" * 5000 + b"}"), 'answered no JSON object with a number "score"'),
        (Answer(200, b'{"score": "\xff"}'), 'answered no JSON object with a number "score"'),
        (Answer(200, b" " * 70000 + b'{"score": 1}'), "answered more than 65536 bytes"),
        (Answer(302, headers={"Location": "http://10.0.0.1/"}), "answered 302, and redirects are not followed"),
    ],
)
def test_an_answer_that_is_no_score_is_told_in_the_notes(tenant, placed, grader, courier, database, answer, why):
    taken = placed()
    grader.answers = lambda asked: answer if asked["sample"]["output_text"] == "b" else by_length(asked)
    taken.report(wrote(None, *"aaaaaaaaab"))
    assert courier.work_off_due() == 10
    (base,) = evaluations(tenant, taken)
    note = f"metric 'judge': 1 of 10 texts could not be graded (1: {why}) and are left out of its mean"
    assert (base["notes"], base["scores"]["judge"]) == ([note], pytest.approx(0.1))
    assert ("judge" in base["samples"][7]["scores"], len(base["samples"])) == (True, 8)
    assert (of_task(tenant, taken)["status"], rows(database)) == ("running", (0, 0))


def test_where_more_than_a_tenth_fail_there_is_no_result_and_the_rest_is_not_sent(tenant, placed, grader, courier, database):
    taken = placed()
    grader.answers = lambda _: Answer(403)
    taken.report(wrote(None, *("text" for _ in range(100))))
    made = courier.work_off_due()
    assert 11 <= made < 40
    (base,) = evaluations(tenant, taken)
    (note,) = base["notes"]
    assert note.startswith("metric 'judge' has no result: ")
    assert "were not sent" in note
    assert ": answered 403)" in note
    assert (set(base["scores"]), rows(database)) == ({"exact_match"}, (0, 0))


def test_a_failure_that_may_pass_is_tried_again_thrice(tenant, placed, grader, courier, due, database):
    taken = placed()
    failing = iter([500, 503, 429])
    grader.answers = lambda asked: Answer(status) if (status := next(failing, None)) else by_length(asked)
    taken.report(wrote(None, "maybe"))
    for tries in (1, 2, 3):
        assert courier.work_off_due() == 1
        assert courier.work_off_due() == 0  # its time has not come
        with database.begin() as session:
            row = session.scalars(select(GradedText)).one()
            assert (row.attempts, row.done, row.held_until) == (tries, False, None)
        assert evaluations(tenant, taken)[0]["pending"] == {"judge": 1}
        due()
    assert courier.work_off_due() == 1
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == 0.5
    assert len({asked["trace_id"] for asked in grader.asked}) == 1


def test_after_the_last_try_it_is_given_up(tenant, placed, grader, courier, due):
    taken = placed()
    grader.answers = lambda _: Answer(500)
    taken.report(wrote(None, "maybe"))
    for _ in range(1 + len(WAITS)):
        assert courier.work_off_due() == 1
        due()
    assert courier.work_off_due() == 0
    assert evaluations(tenant, taken)[0]["notes"] == [
        "metric 'judge' has no result: 1 of 1 texts could not be graded (1: answered 500)"
    ]


def test_an_endpoint_that_is_slow_is_waited_for_and_one_that_hangs_is_not(tenant, placed, grader, courier, due):
    taken, hung = placed(), threading.Event()
    slow = threading.Event()

    def answers(asked: dict) -> Answer:
        if asked["sample"]["output_text"] == "hangs":
            hung.wait(PATIENCE)
        elif len(grader.asked) < 2:
            slow.wait(PATIENCE)  # until the other's call has come
        slow.set()
        return by_length(asked)

    grader.answers = answers
    taken.report(wrote(None, "one", "two"))
    assert courier.work_off_due() == 2
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == pytest.approx(0.3)
    courier._outbound = Outbound((HERE,), seconds=0.3)
    taken.report(wrote(0, "hangs"))
    for _ in range(1 + len(WAITS)):
        assert courier.work_off_due() == 1
        due()
    hung.set()
    (note,) = evaluations(tenant, taken)[1]["notes"]
    assert note.startswith("metric 'judge' has no result: 1 of 1 texts could not be graded (1: ReadTimeout")


def test_an_endpoint_that_nobody_serves_or_that_is_not_public_is_told(tenant, placed, grader, courier, due, settings):
    with socket.socket() as held:  # its port refuses connections, and nobody else gets it meanwhile
        held.bind(("127.0.0.1", 0))
        taken = placed(url=f"http://127.0.0.1:{held.getsockname()[1]}/grade")
        taken.report(wrote(None, "maybe"))
        for _ in range(1 + len(WAITS)):
            courier.work_off_due()
            due()
    assert "ConnectError" in evaluations(tenant, taken)[0]["notes"][0]
    taken.report(wrote(0, "maybe"))
    courier._outbound = Outbound()
    assert courier.work_off_due() == 1
    assert f"its URL {PRIVATE}"[:40] in evaluations(tenant, taken)[1]["notes"][0]
    assert grader.asked == []


def test_a_url_that_may_not_be_called_is_refused_when_the_task_is_posted(tenant, serve, settings_for, database_url, tmp_path):
    metric = {"type": "endpoint", "name": "judge"}
    caller = serve(settings_for(database_url, tmp_path))
    for url, words in [
        ("https://10.0.0.1/grade", "an operator allows a private network in MOTET_GRADER_NETWORKS"),
        ("https://[::1]/grade", "not public"),
        ("https://1.2.3.4.5/grade", "has the host 1.2.3.4.5, which is written as an IP address and is none"),
        ("http://judge.example.com/", "must start with https://"),
        ("https://user:word@judge.example.com/", "may not hold a user name or password"),
    ]:
        spec = caller.spec(caller.file(), evaluation={"metrics": [{**metric, "url": url}]})
        for path in ("/v1/tasks", "/v1/tasks/estimate"):
            refused = caller.post(path, json=spec)
            assert refused.status_code == 422, refused.text
            (error,) = refused.json()["errors"]
            assert (error["field"], error["code"]) == ("evaluation.metrics[0].url", "url_refused")
            assert words in error["message"]
    spec = caller.spec(caller.file(), evaluation={"metrics": [{**metric, "url": "https://judge.example.com/"}]})
    assert caller.post("/v1/tasks", json=spec).status_code == 201


def test_texts_at_a_milestone_are_graded_too_while_the_job_trains(tenant, placed, grader, courier):
    taken = placed(evaluation={"milestones": [0.5]})
    taken.report(wrote(0, "yes", "maybe", milestone=10, prompt_scores={}))
    (before,) = evaluations(tenant, taken, at="milestones")
    assert before["pending"] == {"judge": 2}
    assert courier.work_off_due() == 2
    (found,) = evaluations(tenant, taken, at="milestones")
    assert (found["scores"], found["pending"]) == ({"exact_match": 0.5, "judge": pytest.approx(0.4)}, {})
    assert evaluations(tenant, taken) == []
    events = tenant.get(f"/openai/v1/fine_tuning/jobs/{taken.given.task_id}/events").json()["data"]
    assert "Configuration 0 wrote texts at step 18: exact_match 0.5000, judge 0.4000" in {one["message"] for one in events}


def test_an_evaluation_that_is_repeated_is_graded_anew_and_the_first_not_any_more(tenant, placed, grader, courier, database):
    taken = placed()
    taken.report(wrote(0, "first", "first"))
    taken.report(wrote(0, "again"))
    assert (courier.work_off_due(), grader.texts) == (1, ["again"])
    assert evaluations(tenant, taken)[0]["scores"]["judge"] == 0.5
    taken.report(wrote(0, "more"), wrote(0, "nothing", texts=[]))
    assert rows(database) == (0, 0)
