"""A task's trace, from the request that creates it to its end, with a scripted node; and what is not traced."""

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from service.settings import Settings, SettingsError
from service.tasks.models import Task
from service.tracing import span_exporter
from tests.collector import collecting
from tests.service.fleet.scripted import completed, moved

CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture(scope="module")
def collector():
    """Where it stalls, no batch is sent twice."""
    with collecting() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_exporter, "_CALL_SECONDS", 600.0)
        yield made


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, collector):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), otlp_endpoint=collector.endpoint)


def stored(database, task_id):
    with database.begin() as session:
        return session.scalars(select(Task.traceparent).where(Task.id == task_id)).one()


def post(tenant, **headers):
    answer = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()), headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def of_task(collector, database, task_id, *names):
    """The spans of the task's trace by name, once these are there."""
    trace = stored(database, task_id).split("-")[1]
    found = collector.until(lambda spans: set(names) <= {span.name for span in spans if span.trace == trace})
    return {span.name: span for span in found if span.trace == trace}


def test_one_trace_links_the_request_to_the_steps(tenant, new_node, plan, database, collector):
    node, task_id = new_node(), post(tenant, traceparent=CALLER)
    plan()
    taken = node.take(task_id)
    assert taken.given.traceparent.split("-")[1] == "ab" * 16
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"))
    phase = {"name": "train", "began": 1_700_000_000.5, "ended": 1_700_000_009.0, "counts": {"steps": 20.0, "tokens": 4000}}
    upload = {"name": "upload adapter", "began": 1_700_000_009.0, "ended": 1_700_000_010.0, "job": 1}
    last = taken.body(completed(0, 20, 18, 1.5), taken.adapter(1, 1.25), completed(1, 20, 18, 1.25))
    for _ in range(2):  # once more, as after a lost answer
        assert taken.call("POST", "reports", last | {"spans": [phase, upload]}).status_code == 200

    own = ("POST /v1/tasks", "task", "check files", "wait", "plan", "placement", "train", "upload adapter")
    spans = of_task(collector, database, task_id, *own)
    assert set(spans) - {"pull"} == set(own)
    assert [span.name for span in collector.spans if span.trace == "ab" * 16].count("train") == 1
    request, task, placement = spans["POST /v1/tasks"], spans["task"], spans["placement"]
    assert (request.trace, request.parent, request.kind) == ("ab" * 16, "cd" * 8, 2)
    assert request.attributes["http.response.status_code"] == 201
    assert task.parent == request.id
    assert {spans[name].parent for name in ("check files", "wait", "plan", "placement")} == {task.id}
    assert {spans[name].parent for name in ("train", "upload adapter")} == {placement.id}
    assert taken.given.traceparent.split("-")[2] == placement.id
    assert (task.attributes["motet.status"], task.attributes["motet.tenant_id"]) == ("succeeded", tenant.tenant_id)
    assert (spans["train"].began, spans["train"].ended) == (phase["began"], phase["ended"])
    assert (spans["train"].attributes["motet.steps"], spans["upload adapter"].attributes["motet.job"]) == (20, 1)
    assert (spans["train"].resource["service.name"], spans["train"].resource["host.name"]) == ("motet-worker", node.name)
    assert task.began <= spans["check files"].began <= spans["wait"].ended <= task.ended
    assert placement.attributes["motet.end_reason"] == "finished"


def test_a_span_beyond_what_the_protocol_holds_costs_no_batch_and_no_report(tenant, new_node, plan, database, collector):
    """The collector's schema refuses a request with one such number, and with it other tenants' spans."""
    node, task_id = new_node(), post(tenant)
    plan()
    taken = node.take(task_id)
    counts = {"tokens": 2.0**63, "rows": -1e300, "steps": 3.0, "x" * 500: 1.0}
    wrong = [
        {"name": "train", "began": -5.0, "ended": 1e300, "job": 10**30, "counts": counts},
        {"name": "export", "began": 1e300, "ended": -1e300, "job": 1},
    ]
    assert taken.call("POST", "reports", taken.body(taken.attached()) | {"spans": wrong}).status_code == 200
    spans = of_task(collector, database, task_id, "train", "export")
    train, said = spans["train"], spans["train"].attributes
    assert (train.began, said["motet.steps"], said["motet.tokens"], said["motet.rows"]) == (0, 3, 2.0**63, -1e300)
    assert "motet.job" not in said
    assert max(map(len, said)) < 100
    assert 2**33 < train.ended < 2**34
    assert spans["export"].began == spans["export"].ended


def test_a_lost_placement_ends_as_an_error_and_the_next_is_in_the_same_trace(tenant, new_node, plan, database, collector):
    node, task_id = new_node(), post(tenant)
    plan()
    first = node.take(task_id)
    node.lost(first)
    plan()
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    spans = of_task(collector, database, task_id, "POST /v1/tasks", "placement", "task")
    assert spans["POST /v1/tasks"].parent == ""
    ended = [span for span in collector.spans if span.parent == spans["task"].id and span.name == "placement"]
    reasons = {span.attributes["motet.end_reason"]: span.error for span in ended}
    assert reasons["executor_lost"] is True
    assert reasons.get("cancelled", False) is False  # where the task was placed again at once
    assert (spans["task"].error, spans["task"].attributes["motet.status"]) == (False, "cancelled")


def test_openais_jobs_and_batches_are_traced_too(tenant, database, collector):
    file = tenant.file()
    job = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": "small", "training_file": file})
    assert job.status_code == 200, job.text
    batch = tenant.post("/v1/batches", json={"tasks": [tenant.spec(file), tenant.spec(file)]}).json()
    with database.begin() as session:
        traces = dict(session.execute(select(Task.id, Task.traceparent).where(Task.tenant_id == tenant.tenant_id)).all())
    assert len(traces) == 3
    assert None not in traces.values()
    assert len({traces[one["id"]] for one in batch["tasks"]}) == 1
    names = {"POST /openai/v1/fine_tuning/jobs", "POST /v1/batches"}
    collector.until(lambda spans: names <= {span.name for span in spans})


def test_no_tenants_data_is_in_a_span(tenant, new_node, plan, database, collector):
    secret = "a-name-that-only-its-tenant-may-read"
    spec = tenant.spec(tenant.file(), name=secret, labels={secret: secret})
    task_id = tenant.post("/v1/tasks", json=spec).json()["id"]
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    of_task(collector, database, task_id, "task")
    assert secret not in repr(collector.spans)
    assert tenant.key not in repr(collector.spans)


def test_what_a_caller_does_not_sample_is_not_traced(tenant, database):
    assert stored(database, post(tenant, traceparent=CALLER[:-1] + "0")) is None


def test_requests_that_create_no_task_have_no_span(tenant, collector, database):
    tenant.post("/v1/tasks", json={})
    tenant.post("/v1/webhooks", json={})
    of_task(collector, database, post(tenant), "POST /v1/tasks")
    assert {span.name for span in collector.spans if span.kind == 2} <= {
        "POST /v1/tasks",
        "POST /v1/batches",
        "POST /openai/v1/fine_tuning/jobs",
    }


def test_a_worker_that_knows_no_spans_reports_as_before(tenant, new_node, plan):
    node, task_id = new_node(), post(tenant)
    plan()
    taken = node.take(task_id)
    assert "spans" not in taken.body(taken.attached())
    taken.report(taken.attached())


USERINFO = "credentials go into MOTET_OTLP_HEADERS"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MOTET_OTLP_ENDPOINT", "collector:4318", "MOTET_OTLP_ENDPOINT"),
        ("MOTET_OTLP_ENDPOINT", "https://motet:hunter2hunter2@collector", USERINFO),
        ("MOTET_OTLP_ENDPOINT", "https://motet:7/hunter2@collector", USERINFO),
        ("MOTET_OTLP_ENDPOINT", "https://collector/?token=hunter2hunter2", USERINFO),
        ("MOTET_OTLP_ENDPOINT", "https://collector/#hunter2hunter2", USERINFO),
        ("MOTET_OTLP_ENDPOINT", "https://collector:hunter2", "of the form https://host:port/path"),
        ("MOTET_OTLP_ENDPOINT", "https://collector:0", "of the form https://host:port/path"),
        ("MOTET_OTLP_HEADERS", "nonsense", "name=value"),
    ],
)
def test_a_wrong_setting_is_named_and_its_secret_is_not(settings, environment_of, monkeypatch, name, value, says):
    for key, said in environment_of(settings).items():
        monkeypatch.setenv(key, said)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=says) as refused:
        Settings.load()
    assert str(refused.value).startswith(name)
    assert "hunter2" not in str(refused.value)


def test_the_collectors_credentials_are_kept_out_of_logs(settings):
    own = settings.model_copy(update={"otlp_headers": SecretStr("authorization=Bearer 12345678, x-scope=abcdefgh")})
    assert {"authorization=Bearer 12345678, x-scope=abcdefgh", "Bearer 12345678", "abcdefgh"} <= set(own.secrets)
