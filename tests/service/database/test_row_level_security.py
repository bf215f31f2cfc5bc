"""Row-level security behind the tenant filter: asked of every table that the metadata knows, each with a row of two tenants."""

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Double,
    Engine,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    create_engine,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.types import NullType

from service.database.checked_json import CheckedJson
from service.database.engine import Database
from service.schema import roles, row_level_security, schema_upgrade
from service.settings import Settings

OWNED = [schema_upgrade.metadata.tables[name] for name in row_level_security.tenant_tables(schema_upgrade.metadata)]
NOBODYS = {table.name for table in schema_upgrade.metadata.sorted_tables} - {table.name for table in OWNED}
TENANTS = ("tenant_a", "tenant_b")

_numbers = itertools.count(1)
MAKERS: dict[type, Callable[[], Any]] = {
    String: lambda: f"x{next(_numbers)}",
    Text: lambda: "x",
    Integer: lambda: next(_numbers),
    BigInteger: lambda: next(_numbers),
    Float: lambda: 1.0,
    Double: lambda: 1.0,
    Boolean: lambda: False,
    DateTime: lambda: datetime.now(UTC),
    Date: lambda: datetime.now(UTC).date(),
    LargeBinary: lambda: str(next(_numbers)).encode(),
    JSONB: dict,
    CheckedJson: dict,
    ARRAY: list,
    NullType: lambda: None,
}


def made_up(column: Column[Any], tenant: str, rows: dict[str, dict[str, Any]]) -> Any:
    """A value for the column: what it refers to where this tenant has one, else anything of its type."""
    if column.name == "tenant_id":
        return tenant
    for key in column.foreign_keys:
        if key.column.table.name in rows:
            return rows[key.column.table.name][key.column.name]
    kind = next(kind for kind in type(column.type).__mro__ if kind in MAKERS)
    value = MAKERS[kind]()
    return value[: column.type.length] if isinstance(value, str) and column.type.length else value


def fill(connection: Connection, tenant: str) -> None:
    """One row of this tenant in each of the tables that are tenants'; what is nobody's is not looked for."""
    rows: dict[str, dict[str, Any]] = {}
    connection.execute(text("SET LOCAL session_replication_role = replica"))  # references to what is nobody's
    for table in OWNED:
        row = {c.name: made_up(c, tenant, rows) for c in table.columns if not c.nullable and c.server_default is None}
        if table.name == "tenants":
            row["id"] = tenant
        connection.execute(insert(table).values(row))
        rows[table.name] = row


@pytest.fixture(scope="module")
def full(stack, template) -> str:
    """The URL of a database with a row of two tenants in each tenants' table."""
    url = stack.new_database(template)
    engine = create_engine(url)
    for tenant in TENANTS:
        with engine.begin() as connection:
            fill(connection, tenant)
    engine.dispose()
    return url


@pytest.fixture(scope="module")
def app_role(stack, full) -> Iterator[Database]:
    made = Database(stack.postgres.url(full.rpartition("/")[2].partition("?")[0], roles.APP), pool_size=2)
    yield made
    made.engine.dispose()


@pytest.fixture(scope="module")
def system_role(stack, full) -> Iterator[Engine]:
    made = create_engine(stack.postgres.url(full.rpartition("/")[2].partition("?")[0], roles.SYSTEM))
    yield made
    made.dispose()


def test_which_tables_are_nobodys():
    """A new table of this kind is listed here on purpose, or given a tenant_id."""
    fleets = {
        "base_copies",
        "base_model_files",
        "base_models",
        "gpu_prices",
        "join_tokens",
        "nodes",
        "plan_requests",
        "planner_lease",
        "plans",
        "survivals",
        "throughput_profiles",
    }
    counted = {
        "swept_placements",
        "ended_answer_sessions",
        "ended_totals",
        "ended_totals_through",
        "usage_rolled_up_through",
        "newest_backup",
    }
    assert fleets | counted | {"users"} == NOBODYS


def readable(table: Table) -> bool:
    return row_level_security.rights_of_app(table, schema_upgrade.metadata) is not None


@pytest.mark.parametrize("table", OWNED, ids=lambda table: table.name)
def test_without_a_tenant_there_are_no_rows(table, app_role, system_role):
    with system_role.begin() as connection:
        assert connection.scalar(select(func.count()).select_from(table)) == len(TENANTS)
    if not readable(table):
        with pytest.raises(ProgrammingError, match="permission denied"), app_role.begin() as session:
            session.execute(select(table))
        return
    with app_role.begin() as session:
        assert session.execute(select(table)).all() == []
    for nobody in ("", "tenant_", "%", "tenant_c"):
        with app_role.for_tenant(nobody).begin() as session:
            assert session.execute(select(table)).all() == []


@pytest.mark.parametrize("table", [table for table in OWNED if readable(table)], ids=lambda table: table.name)
def test_a_tenant_sees_its_own_row_alone(table, app_role):
    seen = []
    for tenant in TENANTS:
        with app_role.for_tenant(tenant).begin() as session:
            seen += (rows := session.execute(select(table)).all())
            assert len(rows) == 1
            own = table.columns.get("tenant_id", table.columns.id if table.name == "tenants" else None)
            if own is not None:
                assert session.scalars(select(own)).all() == [tenant]
    assert len(set(map(str, seen))) == len(TENANTS)


def writable(table: Table) -> bool:
    return "UPDATE" in (row_level_security.rights_of_app(table, schema_upgrade.metadata) or "")


@pytest.mark.parametrize("table", [table for table in OWNED if writable(table)], ids=lambda table: table.name)
def test_another_tenants_row_is_neither_changed_nor_taken_nor_given(table, app_role, system_role):
    with system_role.begin() as connection:
        before = sorted(map(str, connection.execute(select(table)).all()))
    key = next(iter(table.primary_key.columns))
    with app_role.for_tenant(TENANTS[0]).begin() as session:
        own = session.scalars(select(key)).one()
        assert session.execute(update(table).where(key != own).values({key.name: key})).rowcount == 0
    if "tenant_id" in table.columns:
        with pytest.raises(ProgrammingError, match="row-level security"), app_role.for_tenant(TENANTS[0]).begin() as session:
            session.execute(update(table).values(tenant_id=TENANTS[1]))
    with system_role.begin() as connection:
        assert sorted(map(str, connection.execute(select(table)).all())) == before


def test_the_tenant_is_forgotten_with_its_transaction(app_role):
    one = Database(str(app_role.engine.url.render_as_string(hide_password=False)), pool_size=1)
    files = schema_upgrade.metadata.tables["files"]
    with one.for_tenant(TENANTS[0]).begin() as session:
        assert len(session.execute(select(files)).all()) == 1
    with one.begin() as session:  # the same connection
        assert session.execute(select(files)).all() == []
    one.engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        f"SET ROLE {roles.SYSTEM}",
        "ALTER TABLE tasks DISABLE ROW LEVEL SECURITY",
        "DROP POLICY of_tenant ON tasks",
        "CREATE TABLE mine ()",
        "SELECT hash FROM api_keys",
        "SELECT email FROM users",
        "UPDATE memberships SET role = 'owner'",
        "SELECT hash FROM invitations",
        "UPDATE tenants SET weight = 1000",
        "UPDATE nodes SET status = 'ready'",
        "DELETE FROM plan_requests",
        "UPDATE tenant_usage SET tokens = 0",
        "DELETE FROM task_usage",
        "UPDATE queue_status SET number = 0",
        "SELECT pg_read_file('/etc/passwd')",
    ],
)
def test_what_the_app_role_may_not_do(app_role, statement):
    with (
        pytest.raises(ProgrammingError, match=r"permission denied|must be owner"),
        app_role.for_tenant(TENANTS[0]).begin() as session,
    ):
        session.execute(text(statement))


def test_protecting_again_changes_nothing(full):
    engine = create_engine(full)
    policies = text("SELECT oid, polname, pg_get_expr(polqual, polrelid) FROM pg_policy ORDER BY oid")
    with engine.connect() as connection:
        before = connection.execute(policies).all()
    schema_upgrade.upgrade(full)
    with engine.connect() as connection:
        assert connection.execute(policies).all() == before
    engine.dispose()


def test_a_table_left_open_is_found_and_mended(new_database_url, settings_for, tmp_path):
    engine, settings = create_engine(new_database_url), settings_for(new_database_url, tmp_path)
    schema_upgrade.require(settings)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE files NO FORCE ROW LEVEL SECURITY"))
    with pytest.raises(schema_upgrade.SchemaBehind, match=r"does not guard files; run: python -m service migrate"):
        schema_upgrade.require(settings)
    schema_upgrade.migrate(settings)
    schema_upgrade.require(settings)
    engine.dispose()


def test_a_role_that_may_too_much_is_refused(stack, new_database_url, settings_for, tmp_path):
    settings: Settings = settings_for(new_database_url, tmp_path)
    for changes, why in (
        ({"app_database_url": new_database_url}, "must be motet_app"),
        ({"app_database_url": settings.database_url}, "must be motet_app"),
        ({"database_url": new_database_url}, "must be motet_system"),
    ):
        with pytest.raises(roles.RoleUnfit, match=why):
            schema_upgrade.require(settings.model_copy(update=changes))
    engine = create_engine(new_database_url)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER ROLE {roles.APP} BYPASSRLS"))
        with pytest.raises(roles.RoleUnfit, match="may bypass row-level security: ALTER ROLE motet_app"):
            schema_upgrade.require(settings)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER ROLE {roles.APP} NOBYPASSRLS"))
        engine.dispose()


def test_a_password_that_changed_is_set_anew(stack, new_database_url):
    url = stack.postgres.url(role=roles.APP)
    other = re.sub(r"(motet_app:)\w+", r"\1" + "f" * 64, url)
    try:
        roles.allow_login(new_database_url, roles.APP, other)
        roles.check_role(other, roles.APP)
    finally:
        roles.allow_login(new_database_url, roles.APP, url)
    with pytest.raises(roles.RoleUnfit, match="names the user 'motet_system'"):
        roles.allow_login(new_database_url, roles.APP, stack.postgres.url(role=roles.SYSTEM))
