"""Tracking servers as tenants manage them, and specs that name one."""

import pytest
from openai.types.fine_tuning import FineTuningJob
from sqlalchemy import select, text

from service.background.resealing import run as reseal
from service.background.retention import Retention, forget
from service.database.engine import Database
from service.http.openai_ids import own_id
from service.mirrors import tracking_servers
from service.mirrors.models import TaskMirror, TrackingServer
from service.mirrors.tracking_servers import box_of, opened
from service.tasks.models import Task
from service.tenants.member_roles import Role
from tests.service.mirrors.conftest import TOKEN, added, finished, mirror_of

PATH = "/v1/tracking-servers"
SERVER = {"name": "lab", "url": "https://1.1.1.1/mlflow"}
WANDB_SERVER = {"type": "wandb", "name": "w", "credentials": {"api_key": TOKEN}}
OWN_WANDB = WANDB_SERVER | {"url": "https://1.1.1.1"}
WANDB = {"type": "wandb", "wandb": {"project": "p"}}
MIRRORED = {"type": "mlflow", "server": "lab", "experiment": "voices"}


def test_a_tracking_server_is_made_shown_changed_and_deleted(tenant):
    made = tenant.post(PATH, json=SERVER | {"credentials": {"token": TOKEN}})
    assert made.status_code == 201, made.text
    server = made.json()
    assert (server["name"], server["url"], server["has_credentials"]) == ("lab", SERVER["url"], True)
    assert TOKEN not in made.text
    assert tenant.get(PATH).json()["data"] == [server]
    place = f"{PATH}/{server['id']}"
    assert tenant.get(place).json() == server
    assert tenant.patch(place, json={"credentials": None}).json()["has_credentials"] is False
    changed = tenant.patch(place, json={"url": "https://1.0.0.1", "credentials": {"username": "u", "password": "p:q"}}).json()
    assert (changed["url"], changed["has_credentials"]) == ("https://1.0.0.1", True)
    assert tenant.patch(place, json={}).json() == changed
    assert tenant.delete(place).status_code == 204
    assert tenant.get(place).status_code == 404


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"name": "a name"}, "name", "such as mlflow-1"),
        ({"url": "http://1.1.1.1"}, "url", "must start with https://"),
        ({"url": "https://10.1.2.3"}, "url", "an operator allows a private network in MOTET_TRACKING_NETWORKS"),
        ({"url": "https://1.1.1.1/" + "a" * 1969}, "url", "at most 1984"),  # with a call's path it would be one too long
        ({"url": "https://1.1.1.1/?a=b"}, "url", "may not have a query"),
        ({"url": "https://u:p@1.1.1.1"}, "url", "may not hold a user name or password"),
        ({"credentials": {}}, "credentials", "give 'token', or 'username' with 'password'"),
        ({"credentials": {"username": "u"}}, "credentials", "give 'token', or 'username' with 'password'"),
        ({"credentials": {"token": "t", "username": "u", "password": "p"}}, "credentials", "give 'token', or"),
        ({"credentials": {"token": "a\nb"}}, "credentials.token", "must be printable ASCII"),
        ({"credentials": {"username": "a:b", "password": "p"}}, "credentials.username", "without colons"),
        ({"credentials": {"token": "t", "api_key": "k"}}, "credentials", "give 'token', or"),
        ({"credentials": {"api_key": "k"}}, "credentials.api_key", "is of type wandb; for MLflow give 'token'"),
        ({"url": None}, "url", "says where the MLflow server is"),
        ({"type": "comet"}, "type", "'mlflow' or 'wandb'"),
        ({"type": "wandb"}, "credentials.api_key", "is what a server of type wandb asks for"),
        ({"type": "wandb", "credentials": {"token": "t"}}, "credentials.api_key", "is what a server of type wandb asks for"),
        ({"type": "wandb", "credentials": {"api_key": "a key\n"}}, "credentials.api_key", "must be printable ASCII"),
        ({"type": "wandb", "url": "https://10.1.2.3", "credentials": {"api_key": "k"}}, "url", "MOTET_TRACKING_NETWORKS"),
    ],
)
def test_what_is_wrong_with_a_tracking_server_is_said(tenant, wrong, field, said):
    answer = tenant.post(PATH, json=SERVER | wrong)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert (error["field"], said in error["message"]) == (field, True), error


def test_credentials_go_to_no_url_that_they_were_not_given_for(tenant):
    place = f"{PATH}/{tenant.post(PATH, json=SERVER | {'credentials': {'token': TOKEN}}).json()['id']}"
    moved = {"url": "https://1.0.0.1"}
    refused = tenant.patch(place, json=moved)
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert (error["field"], error["code"]) == ("credentials", "credentials_needed")
    assert tenant.get(place).json()["url"] == SERVER["url"]
    assert tenant.patch(place, json={"url": SERVER["url"]}).json()["has_credentials"] is True
    assert tenant.patch(place, json={"url": None}).json()["errors"][0]["field"] == "url"
    assert tenant.patch(place, json=moved | {"credentials": None}).json()["has_credentials"] is False
    assert tenant.patch(place, json={"url": SERVER["url"]}).status_code == 200, "there are none that could go anywhere"


def test_a_name_is_taken_once_and_there_are_so_many(tenant, new_tenant, monkeypatch):
    assert tenant.post(PATH, json=SERVER).status_code == 201
    again = tenant.post(PATH, json=SERVER)
    assert (again.status_code, again.json()["code"]) == (409, "tracking_server_exists")
    assert new_tenant().post(PATH, json=SERVER).status_code == 201
    monkeypatch.setattr(tracking_servers, "MOST", 2)
    assert tenant.post(PATH, json=SERVER | {"name": "b"}).status_code == 201
    many = tenant.post(PATH, json=SERVER | {"name": "c"})
    assert (many.status_code, many.json()["code"]) == (422, "too_many_tracking_servers")


def test_viewers_see_tracking_servers_and_editors_change_them(new_member):
    editor = new_member(Role.EDITOR)
    viewer = new_member(Role.VIEWER, of=editor)
    server = editor.post(PATH, json=SERVER).json()
    assert viewer.get(PATH).json()["data"] == [server]
    for method, path, body in (
        ("POST", PATH, SERVER | {"name": "b"}),
        ("PATCH", f"{PATH}/{server['id']}", {}),
        ("DELETE", f"{PATH}/{server['id']}", None),
    ):
        assert viewer.request(method, path, json=body).status_code == 403


def test_credentials_are_sealed_and_sealed_anew_under_a_new_key(
    tenant, mlflow, settings, settings_for, database_url, tmp_path, database
):
    server = added(tenant, mlflow, credentials={"username": "u", "password": "a secret"})
    with database.begin() as session:
        assert b"a secret" not in session.get_one(TrackingServer, server["id"]).credentials
    renewed = settings_for(database_url, tmp_path, secret_keys_before=(settings.secret_key,))
    reseal(renewed)
    with database.begin() as session:
        sealed = session.get_one(TrackingServer, server["id"]).credentials
    box = box_of(renewed.model_copy(update={"secret_keys_before": ()}))
    assert opened(box, sealed) == {"username": "u", "password": "a secret"}


def test_a_spec_names_tracking_servers_that_are_there(tenant, new_tenant):
    new_tenant().post(PATH, json=SERVER)
    file = tenant.file()
    spec = tenant.spec(file) | {"integrations": [MIRRORED]}
    for path, body in (("tasks", spec), ("tasks/estimate", spec), ("batches", {"tasks": [spec]})):
        refused = tenant.post(f"/v1/{path}", json=body)
        assert refused.status_code == 422, path
        error = refused.json()["errors"][-1]
        assert error["field"].endswith("integrations[0].server")
        assert "POST /v1/tracking-servers makes one" in error["message"]
    tenant.post(PATH, json=SERVER)
    task = tenant.post("/v1/tasks", json=spec).json()
    assert task["spec"]["integrations"] == [MIRRORED | {"tags": {}}]
    (mirror,) = tenant.get(f"/v1/tasks/{task['id']}/mirrors").json()["data"]
    assert (mirror["server"], mirror["experiment"], mirror["state"], mirror["points"]) == ("lab", "voices", "active", 0)
    plain = tenant.post("/v1/tasks", json=tenant.spec(file)).json()["id"]
    assert tenant.get(f"/v1/tasks/{plain}/mirrors").json()["data"] == []


@pytest.mark.parametrize(
    ("integrations", "said"),
    [
        ([{"type": 3}, MIRRORED], "runs are not sent to 3; mirror them to Weights & Biases"),
        ([{"type": "comet"}], '"server": the name of a tracking server'),
        ([{"experiment": "e"}], "runs are not sent to a service without a type"),
        ([MIRRORED, MIRRORED | {"experiment": "another"}], "names the tracking server lab twice"),
        ([MIRRORED | {"tags": {"mlflow.user": "x"}}], "are set by MLflow and by the mirror"),
        ([MIRRORED | {"tags": {"a/../b": "x"}}], "must begin with a letter, digit or _"),
        ([MIRRORED | {"server": f"s{n}"} for n in range(5)], "at most 4"),
        ([WANDB, WANDB], "names the tracking server of type wandb (the one that is not named) twice"),
        ([WANDB | {"wandb": {"project": "a/b"}}], "such as my-project"),
        ([WANDB | {"wandb": {"project": "."}}], "more than dots"),
        ([WANDB | {"wandb": {"project": "p", "entity": ".."}}], "more than dots"),
        ([WANDB | {"wandb": {"project": "p", "tags": ["t" * 65]}}], "at most 64"),
        ([{"type": "wandb"}], "required"),
    ],
)
def test_integrations_that_cannot_be_are_refused_in_words(tenant, integrations, said):
    answer = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()) | {"integrations": integrations})
    assert answer.status_code == 422
    assert said in answer.json()["errors"][0]["message"], answer.text


def test_a_job_of_openais_form_is_mirrored_too(tenant):
    tenant.post(PATH, json=SERVER)
    asked = {"model": "small", "training_file": tenant.file(), "integrations": [MIRRORED]}
    job = tenant.post("/openai/v1/fine_tuning/jobs", json=asked)
    assert job.status_code == 200, job.text
    assert job.json()["integrations"] == [MIRRORED | {"tags": {}}]
    assert len(tenant.get(f"/v1/tasks/{own_id(job.json()['id'])}/mirrors").json()["data"]) == 1
    plain = tenant.post("/openai/v1/fine_tuning/jobs", json={**asked, "integrations": None}).json()
    assert plain["integrations"] == []


def test_a_server_of_weights_and_biases_has_its_public_address_and_a_key(tenant, monkeypatch):
    assert tracking_servers.WANDB_URL == "https://api.wandb.ai"
    monkeypatch.setattr(tracking_servers, "WANDB_URL", "https://1.1.1.1")  # a name that is not looked up
    made = tenant.post(PATH, json=WANDB_SERVER)
    assert made.status_code == 201, made.text
    server = made.json()
    assert (server["type"], server["url"], server["has_credentials"]) == ("wandb", "https://1.1.1.1", True)
    assert TOKEN not in made.text
    place = f"{PATH}/{server['id']}"
    for wrong in ({"credentials": None}, {"credentials": {"token": "t"}}):
        refused = tenant.patch(place, json=wrong)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "credentials.api_key")
    assert tenant.patch(place, json={"credentials": {"api_key": "another"}}).status_code == 200


def test_a_job_of_openais_form_with_weights_and_biases(tenant):
    """The request of OpenAI's documentation goes to the tenant's server of that type, and is answered as OpenAI answers it."""
    run = {"project": "voices", "name": "one", "entity": "team", "tags": ["a", "b"]}
    asked = {"model": "small", "training_file": tenant.file(), "integrations": [{"type": "wandb", "wandb": run}]}
    none = tenant.post("/openai/v1/fine_tuning/jobs", json=asked)
    assert (none.status_code, none.json()["error"]["param"]) == (400, "integrations[0]")
    assert 'POST /v1/tracking-servers makes one of {"type": "wandb", "name": "wandb",' in none.json()["error"]["message"]
    tenant.post(PATH, json=SERVER)
    assert tenant.post("/openai/v1/fine_tuning/jobs", json=asked).status_code == 400, "MLflow's is of another type"
    tenant.post(PATH, json=OWN_WANDB)
    job = tenant.post("/openai/v1/fine_tuning/jobs", json=asked)
    assert job.status_code == 200, job.text
    assert job.json()["integrations"] == [{"type": "wandb", "wandb": run}]
    (mirror,) = tenant.get(f"/v1/tasks/{own_id(job.json()['id'])}/mirrors").json()["data"]
    assert [mirror[name] for name in ("type", "server", "experiment", "entity")] == ["wandb", "w", "voices", "team"]
    short = tenant.post("/openai/v1/fine_tuning/jobs", json=asked | {"integrations": [WANDB]}).json()["integrations"]
    assert short == [{"type": "wandb", "wandb": {"project": "p", "name": None, "entity": None, "tags": []}}]
    assert FineTuningJob.model_validate(job.json()).integrations[0].wandb.project == "voices"


def test_which_server_is_meant_is_said_where_it_is_not_clear(tenant):
    def refused(*integrations):
        answer = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()) | {"integrations": integrations})
        assert answer.status_code == 422, answer.text
        (error,) = answer.json()["errors"]
        return error["field"], error["code"], error["message"]

    tenant.post(PATH, json=SERVER)
    tenant.post(PATH, json=OWN_WANDB)
    named = WANDB | {"server": "w"}
    assert refused(WANDB | {"server": "lab"})[:2] == ("integrations[0].server", "tracking_server_type")
    assert refused(MIRRORED | {"server": "w"})[2] == "the tracking server 'w' is of type wandb, not mlflow"
    assert refused(WANDB, named)[:2] == ("integrations[1].server", "tracking_server_twice")
    assert '{"type": "wandb", "name": "x",' in refused(WANDB | {"server": "x"})[2]
    tenant.post(PATH, json=OWN_WANDB | {"name": "v"})
    field, code, message = refused(WANDB)
    assert (field, code) == ("integrations[0]", "tracking_server_ambiguous")
    assert "v" in message
    assert "name one in 'server'" in message
    task = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()) | {"integrations": [named, MIRRORED]})
    assert task.status_code == 201, task.text
    mirrors = tenant.get(f"/v1/tasks/{task.json()['id']}/mirrors").json()["data"]
    assert sorted((one["type"], one["server"]) for one in mirrors) == [("mlflow", "lab"), ("wandb", "w")]


def test_a_spec_without_integrations_says_nothing_of_them(tenant, database):
    """So that a planner of the version before, which does not know the field, reads the spec."""
    job = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": "small", "training_file": tenant.file()}).json()
    with database.begin() as session:
        assert "integrations" not in session.get_one(Task, own_id(job["id"])).spec


def test_a_deleted_server_stops_its_mirrors_and_no_task(tenant, placed, mlflow, courier, due):
    taken = placed()
    (server,) = tenant.get(PATH).json()["data"]
    assert tenant.delete(f"{PATH}/{server['id']}").status_code == 204
    due()
    assert (courier.work_off_due(), mlflow.calls) == (0, [])
    seen = mirror_of(tenant, taken)
    assert (seen["state"], seen["error"]) == ("stopped", "the tracking server was deleted")
    finished(taken)
    assert tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["status"] == "succeeded"


def test_a_deleted_tasks_mirror_is_forgotten(tenant, placed, tracker, courier, due, database, dependencies, settings):
    taken, other = placed(), placed()
    courier.work_off_due()
    finished(taken)
    assert tenant.delete(f"/v1/tasks/{taken.given.task_id}").status_code == 204
    before = len(tracker.calls)
    due()
    assert (courier.work_off_due(), len(tracker.calls)) == (0, before)
    with database.begin() as session:
        assert list(session.scalars(select(TaskMirror.task_id))) == [other.given.task_id]
    forget(dependencies.db, Retention.of(settings))
    assert mirror_of(tenant, other)["state"] == "active"


def test_a_tenant_sees_no_other_tenants_servers_and_mirrors(tenant, new_tenant, placed, courier, settings):
    """Neither by the API nor as the API's role in the database."""
    taken, other = placed(), new_tenant()
    courier.work_off_due()
    assert other.get(f"/v1/tasks/{taken.given.task_id}/mirrors").status_code == 404
    app = Database(settings.app_database_url, pool_size=1)
    for whose, seen in ((tenant, [1, 1, 2]), (other, [0, 0, 0])):
        with app.for_tenant(whose.tenant_id).begin() as session:
            counts = [
                session.scalar(text(f"SELECT count(*) FROM {table}"))
                for table in ("tracking_servers", "task_mirrors", "mirrored_runs")
            ]
            assert counts == seen
    app.engine.dispose()
