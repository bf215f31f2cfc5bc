"""A migrated database for each test (copied from a template that is migrated once), tenants with keys, and a client."""

import itertools
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import ColumnElement, update
from starlette.testclient import TestClient

from service.app import create_app
from service.database.engine import Base, Database
from service.fleet.models import BaseModel
from service.members.invitations import invite
from service.members.tenant_entry import admit, give_key
from service.oidc.identity import Identity
from service.schema import roles, schema_upgrade
from service.settings import Settings
from service.storage.object_store import Storage
from service.tenants.api_keys import Principal, Scope, mint_key
from service.tenants.member_roles import Role
from service.tenants.models import Tenant
from tests import free_ports
from tests.conftest import PATIENT_REDIS
from tests.service.adapters.adapter_uploads import BASE
from tests.service.api import Caller
from tests.service.live_server import PATIENCE, Server, live
from tests.service.patient_limits import patient_connects, patient_limits

__all__ = ["patient_connects", "patient_limits"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def template(stack) -> str:
    """The name of a database at the newest revision, with no rows. Nobody may keep it open."""
    url = stack.new_database()
    schema_upgrade.upgrade(url)
    for role in (roles.APP, roles.SYSTEM):
        roles.allow_login(url, role, stack.postgres.url(role=role))
    return name_of(url)


def name_of(database_url: str) -> str:
    """The database's name in its URL."""
    return database_url.rpartition("/")[2].partition("?")[0]


@pytest.fixture(scope="module")
def database_url(stack, template) -> str:
    """One migrated database for a module's tests, which keep apart by having a tenant each."""
    return stack.new_database(template)


@pytest.fixture
def new_database_url(stack, template) -> str:
    """A migrated database that no other test has seen."""
    return stack.new_database(template)


@pytest.fixture(scope="module")
def database(database_url) -> Iterator[Database]:
    """For looking at, or writing, what the API keeps."""
    made = Database(database_url, pool_size=5)
    yield made
    made.engine.dispose()


@pytest.fixture
def damage(database) -> Callable[..., None]:
    """Writes a value to a column, past all that checks it."""

    def write(model: type[Base], column: str, value: object, where: ColumnElement[bool]) -> None:
        with database.begin() as session:
            session.execute(update(model.__table__).where(where).values({column: value}))

    return write


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Find a TCP port that nobody listens on."""
    return free_ports.free_port


@pytest.fixture(scope="session")
def settings_for(stack, template) -> Callable[..., Settings]:
    """Make settings of a service on a database, with its files below a folder: `settings_for(url, folder, port=1234)`."""

    def make(url: str, folder: Path, **changes: object) -> Settings:
        name = name_of(url)
        values: dict[str, object] = {
            "database_url": stack.postgres.url(name, roles.SYSTEM),
            "app_database_url": stack.postgres.url(name, roles.APP),
            "owner_database_url": url,
            "redis_url": stack.valkey.url("service") + PATIENT_REDIS,
            "secret_key": SecretStr(secrets.token_hex(32)),
            "storage_dir": folder / "storage",
            "state_dir": folder / "state",
            "hf_hub_offline": "hf_endpoint" not in changes,
            # whose end is a 503; a machine that stands still for some seconds is no failure of the database
            "statement_timeout_seconds": 90.0,
            "lock_timeout_seconds": 60.0,
        }
        return Settings(**(values | changes))

    return make


@pytest.fixture(scope="session")
def environment_of() -> Callable[[Settings], dict[str, str]]:
    """The environment of a process that is to have these settings."""

    def said(value: object) -> str:
        if isinstance(value, tuple):
            return ",".join(said(one) for one in value)
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    def make(settings: Settings) -> dict[str, str]:
        def variable(name: str) -> str:
            return name.upper() if name.startswith("hf_") else f"MOTET_{name.upper()}"

        return os.environ | {variable(name): said(value) for name, value in settings if value is not None}

    return make


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory) -> Settings:
    return settings_for(database_url, tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def app(settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture(scope="module")
def client(app) -> Iterator[TestClient]:
    """Calls the app without a socket; `raise_server_exceptions` is off, so that a 500 is seen as a client sees it."""
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def storage(app) -> Storage:
    return app.state.motet.storage


def _tenant_with_key(db: Database, scopes: tuple[Scope, ...]) -> tuple[str, str]:
    with db.begin() as session:
        tenant = Tenant(id=f"tenant_{secrets.token_hex(6)}", name=f"team {next(_numbers)} {secrets.token_hex(4)}")
        session.add(tenant)
        session.flush()
        _, key = mint_key(session, tenant.id, "test", scopes)
    return tenant.id, key


@pytest.fixture
def serve() -> Iterator[Callable[[Settings], Caller]]:
    """Start another app, on settings of the test's own, and call it with a key that has every scope."""
    with ExitStack() as stack:

        def start(settings: Settings) -> Caller:
            app = create_app(settings)
            started = stack.enter_context(TestClient(app, raise_server_exceptions=False))
            return Caller(started, *_tenant_with_key(app.state.motet.system, tuple(Scope)))

        yield start


@pytest.fixture
def new_key(database) -> Callable[..., str]:
    """A key of a new tenant, for a server that runs in a process of its own."""

    def make(*scopes: Scope) -> str:
        return _tenant_with_key(database, scopes or (Scope.READ, Scope.WRITE))[1]

    return make


@pytest.fixture
def new_tenant(database, client, small_model) -> Callable[..., Caller]:
    """Make a tenant and a key of it: `new_tenant()`, `new_tenant(Scope.READ)`."""

    def make(*scopes: Scope) -> Caller:
        return Caller(client, *_tenant_with_key(database, scopes or (Scope.READ, Scope.WRITE)))

    return make


@pytest.fixture
def new_member(database, client, new_tenant) -> Callable[..., Caller]:
    """Make a member with a key of their role: `new_member(Role.EDITOR)`, `new_member(Role.VIEWER, of=owner)` in its tenant."""

    def make(role: Role, of: Caller | None = None, subject: str | None = None) -> Caller:
        tenant_id = (of or new_tenant()).tenant_id
        number = subject or f"s{next(_numbers)}-{secrets.token_hex(4)}"
        with database.begin() as session:
            _, link = invite(session, tenant_id, role, None, Principal("", "", frozenset()))
            user, place = admit(session, Identity("https://id.example", number, f"{number}@example.com", number), link)
            _, key, _ = give_key(session, user.id, place, "test", timedelta(days=1))
        return Caller(client, tenant_id, key)

    return make


@pytest.fixture
def tenant(new_tenant) -> Caller:
    """A tenant of this test alone, with a key that may read and write."""
    return new_tenant()


@pytest.fixture
def admin(new_tenant) -> Caller:
    """A tenant whose key has every scope."""
    return new_tenant(*Scope)


@pytest.fixture(scope="module")
def small_model(database) -> str:
    """The name of a row of the allow-list: "small". Its weights are nowhere: only workers would look for them."""
    with database.begin() as session:
        session.add(
            BaseModel(
                name="small",
                source="/nowhere/small",
                revision="a" * 64,
                architecture="LlamaForCausalLM",
                parameters=7_000_000,
                max_position=2048,
            )
        )
    return "small"


@pytest.fixture(scope="module")
def toy(database, tmp_path_factory) -> Path:
    """The folder of a base "toy" of the allow-list, which has a configuration and no weights."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "config.json").write_text(json.dumps(BASE))
    with database.begin() as session:
        session.add(
            BaseModel(
                name="toy",
                source=str(folder),
                revision="b" * 64,
                architecture="LlamaForCausalLM",
                parameters=1000,
                max_position=256,
            )
        )
    return folder


@pytest.fixture(scope="module")
def server(settings) -> Iterator[Server]:
    """The module's app on a socket."""
    with live(settings) as made:
        yield made


@pytest.fixture
def http(server, tenant) -> Iterator[httpx.Client]:
    """The test's tenant, over that socket."""
    with httpx.Client(base_url=server.url, headers=tenant.headers, timeout=PATIENCE) as made:
        yield made
