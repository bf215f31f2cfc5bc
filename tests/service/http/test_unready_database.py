"""A database that is away, restarted or behind: what requests and /readyz say of it."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import create_engine, text

from service.schema import schema_upgrade
from tests.service.http.problems import problem_of


def test_a_database_that_is_away(stack, settings_for, tmp_path, serve):
    url = stack.new_database()
    name = url.rpartition("/")[2].partition("?")[0]
    schema_upgrade.upgrade(url)
    caller = serve(settings_for(url, tmp_path))
    assert caller.get("/v1/tasks").status_code == 200
    with stack.postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        assert problem_of(caller.get("/v1/tasks"), 503, "database_unavailable")["detail"]
        assert caller.get("/v1/tasks").headers["retry-after"]
        before_the_body = caller.client.post("/internal/v1/nodes/n/cached-files", headers={"authorization": "Bearer nc_new"})
        problem_of(before_the_body, 503, "database_unavailable")
        problem_of(caller.get("/readyz"), 503, "not_ready")
        assert caller.get("/livez").status_code == 200
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert caller.get("/v1/tasks").status_code == 200
    assert caller.get("/readyz").status_code == 200


def test_a_database_that_was_restarted_is_noticed_before_a_request_meets_a_dead_connection(
    stack, settings_for, tmp_path, serve
):
    url = stack.new_database()
    name = url.rpartition("/")[2].partition("?")[0]
    schema_upgrade.upgrade(url)
    caller = serve(settings_for(url, tmp_path))
    asked = [f"/v1/{what}" for what in ("tasks", "files", "adapters", "usage")] * 5
    with ThreadPoolExecutor(8) as threads:
        assert {answer.status_code for answer in threads.map(caller.get, asked)} == {200}
        with stack.postgres.connect() as connection:
            ours = "FROM pg_stat_activity WHERE datname = %s"
            connection.execute(f"SELECT pg_terminate_backend(pid, 120000) {ours}", [name])  # until they have ended
        assert {answer.status_code for answer in threads.map(caller.get, asked)} == {200}


def test_a_database_that_falls_behind_is_not_ready(new_database_url, settings_for, tmp_path, serve):
    caller = serve(settings_for(new_database_url, tmp_path))
    assert caller.get("/readyz").status_code == 200
    with create_engine(new_database_url).begin() as owner:
        owner.execute(text("DELETE FROM alembic_version"))
    assert "python -m service migrate" in problem_of(caller.get("/readyz"), 503, "not_ready")["detail"]
