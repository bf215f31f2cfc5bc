"""The first keys: kept while they work, made anew where they are lost, and never left where nobody could read them."""

import json
import secrets
import stat

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import func, select, update

from contract.processes.local_stack import CREDENTIALS
from service.bootstrap import bootstrap
from service.database.engine import Database
from service.fleet.models import JoinToken
from service.tenants.api_keys import Scope, check_key
from service.tenants.models import ApiKey, Tenant


@pytest.fixture
def settings(new_database_url, settings_for, tmp_path):
    return settings_for(new_database_url, tmp_path, port=8321)


@pytest.fixture
def path(settings):
    return settings.state_dir / CREDENTIALS


@pytest.fixture
def database(settings):
    made = Database(settings.database_url, pool_size=2)
    yield made
    made.engine.dispose()


def read(path) -> dict[str, str]:
    return json.loads(path.read_text())


def test_both_tenants_get_keys_that_work(settings, path, database):
    said = bootstrap(settings)
    assert said[0] == "made the tenant 'admin'"
    made = read(path)
    assert made["api_url"] == "http://127.0.0.1:8321"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert [p.name for p in path.parent.iterdir()] == [CREDENTIALS]
    with database.begin() as session:
        assert check_key(session, made["admin_key"]).principal.scopes == frozenset(Scope)
        assert check_key(session, made["demo_key"]).principal.scopes == {Scope.READ, Scope.WRITE}


def test_a_second_time_nothing_happens(settings, path):
    bootstrap(settings)
    before = path.stat()
    assert bootstrap(settings) == [f"nothing to do: the keys in {path} work"]
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_another_address_keeps_the_keys(settings, path):
    bootstrap(settings)
    before = read(path)
    bootstrap(settings.model_copy(update={"port": 4321, "host": "0.0.0.0"}))
    assert read(path) == before | {"api_url": "http://127.0.0.1:4321"}


@pytest.mark.parametrize("left", [None, "{ half a file", "[]", '{"admin_key": "mk_of_another_house"}'])
def test_lost_keys_are_made_anew_and_that_is_said(settings, path, left):
    bootstrap(settings)
    before = read(path)
    path.unlink() if left is None else path.write_text(left)
    said = " ".join(bootstrap(settings))
    assert "made a new key for 'admin'" in said
    assert "DELETE /v1/admin/keys/key_" in said
    assert "made the tenant" not in said
    assert not set(read(path).values()) & {before["admin_key"], before["demo_key"]}


def test_only_the_key_that_was_revoked_is_replaced(settings, path, database):
    bootstrap(settings)
    before = read(path)
    with database.begin() as session:
        demo = session.scalars(select(Tenant.id).where(Tenant.name == "demo")).one()
        session.execute(update(ApiKey).where(ApiKey.tenant_id == demo).values(revoked_at=func.clock_timestamp()))
    assert "made a new key for 'demo': the one in the file does not work" in bootstrap(settings)[0]
    after = read(path)
    assert (after["admin_key"] == before["admin_key"], after["demo_key"] == before["demo_key"]) == (True, False)


def test_where_the_file_cannot_be_written_no_key_comes_to_be(settings, path, database):
    path.mkdir(parents=True)  # in the file's place
    with pytest.raises(IsADirectoryError):
        bootstrap(settings)
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(ApiKey)) == 0


def test_the_nodes_that_are_set_up_with_it_may_join_once(settings, database):
    token = secrets.token_hex(32)
    own = settings.model_copy(update={"join_token": SecretStr(token), "join_nodes": ("one", "two")})
    assert {f"node {name} may join within 24 hours" for name in ("one", "two")} < set(bootstrap(own))
    assert bootstrap(own)[0].startswith("nothing to do")
    with database.begin() as session:
        rows = session.scalars(select(JoinToken).order_by(JoinToken.node_name)).all()
        assert [(row.node_name, row.used_at) for row in rows] == [("one", None), ("two", None)]
        assert token.encode() not in {row.hash for row in rows}
    nobody = own.model_copy(update={"join_nodes": ()})
    assert bootstrap(nobody) == ["MOTET_JOIN_TOKEN lets nobody join: MOTET_JOIN_NODES names no node"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"join_nodes": "one"}, "MOTET_JOIN_TOKEN must be set"),
        ({"join_nodes": "o ne", "join_token": SecretStr("k" * 32)}, "join_nodes"),
        ({"join_token": SecretStr("short")}, "needs at least 32 characters"),
    ],
)
def test_a_wrong_wish_for_nodes_is_refused(new_database_url, settings_for, tmp_path, changes, says):
    with pytest.raises(ValidationError, match=says):
        settings_for(new_database_url, tmp_path, **changes)
