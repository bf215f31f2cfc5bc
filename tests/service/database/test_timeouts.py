"""Timeouts: every role's connections have them, and what runs into one is a 503."""

import asyncio
import threading
from dataclasses import replace

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import ValidationError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from service.app import create_app
from service.app_state import State
from service.database.async_reader import AsyncReader
from service.database.engine import Database
from service.database.prepared_statements import PreparedStatement
from service.database.timeouts import Timeouts
from service.dependencies import Dependencies
from service.messaging.circuit_breaker import CircuitBreaker
from service.schema import schema_upgrade
from tests.service.live_server import until

NAMES = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
SHOWN = text("SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in NAMES))
OWN = {"statement_timeout_seconds": 7, "lock_timeout_seconds": 3, "idle_transaction_seconds": 11}


@pytest.fixture
def own(database_url, settings_for, tmp_path):
    return lambda **more: settings_for(database_url, tmp_path, **(OWN | more))


def shown(database: Database) -> tuple[str, ...]:
    with database.begin() as session:
        return tuple(session.execute(SHOWN).one())


def test_every_roles_connections_have_all_three(own):
    settings = own(work_statement_timeout_seconds=70)
    state: State = create_app(settings).state.motet
    assert shown(state.db) == shown(state.system) == ("7s", "3s", "11s")
    assert shown(Dependencies.of(settings).db) == ("70s", "9s", "165s")

    async def of_line() -> tuple[str, ...]:
        line = AsyncReader(settings.app_database_url, settings.request_timeouts)
        (found,) = await line.look("t", [PreparedStatement(SHOWN)], {})
        row = await found.fetchone()
        await line.close()
        return tuple(row)

    assert asyncio.run(of_line()) == ("7s", "3s", "11s")


@pytest.mark.parametrize("value", ["0", "-1", "0.01", "90000", "soon"])
def test_a_timeout_that_would_be_none_is_refused(own, value):
    for name in ("statement_timeout_seconds", "lock_timeout_seconds", "migration_statement_timeout_seconds"):
        with pytest.raises(ValidationError, match=name):
            own(**{name: value})


@pytest.fixture
def limited(settings, monkeypatch):
    """A database with one short timeout: a busy machine does not run into the others first, nor into our own."""
    made = []
    monkeypatch.setattr("service.database.timeouts._MARGIN_SECONDS", 120.0)

    def make(**short: float) -> Database:
        made.append(Database(settings.database_url, 2, replace(Timeouts(statement=60.0, lock=60.0, idle=60.0), **short)))
        return made[-1]

    yield make
    for database in made:
        database.engine.dispose()


def test_a_statement_is_cut_off(limited):
    with pytest.raises(OperationalError, match="statement timeout"), limited(statement=0.3).begin() as session:
        session.execute(text("SELECT pg_sleep(600)"))


def test_a_lock_is_not_waited_for_for_ever(limited, database, tenant):
    taken = text("SELECT 1 FROM tenants WHERE id = :id FOR UPDATE")
    with database.begin() as holder:
        holder.execute(taken, {"id": tenant.tenant_id})
        with pytest.raises(OperationalError, match="lock timeout"), limited(lock=0.2).begin() as session:
            session.execute(taken, {"id": tenant.tenant_id})


class Answers:
    """An app with a route that does what a test wants with the database."""

    def __init__(self, settings) -> None:
        self.app: FastAPI = create_app(settings)
        self.act = lambda session: None
        router = APIRouter()

        @router.get("/act")
        def act() -> None:
            with self.app.state.motet.system.begin() as session:
                self.act(session)

        self.app.router.routes.extend(router.routes)


def test_each_of_them_is_a_503(own, database, tenant):
    answers = Answers(own(statement_timeout_seconds=0.4, lock_timeout_seconds=0.2, idle_transaction_seconds=0.3))
    taken = text(f"SELECT 1 FROM tenants WHERE id = '{tenant.tenant_id}' FOR UPDATE")

    def idles(session) -> None:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        until(lambda: not there(pid))
        session.execute(text("SELECT 1"))

    def there(pid: int) -> bool:
        with database.begin() as other:
            return bool(other.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}))

    with TestClient(answers.app, raise_server_exceptions=False) as client, database.begin() as holder:
        holder.execute(taken)
        for act in (
            lambda session: session.execute(text("SELECT pg_sleep(600)")),
            lambda session: session.execute(taken),
            idles,
        ):
            answers.act = act
            answer = client.get("/act")
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), answer.text
            assert answer.headers["retry-after"]
        answers.act = lambda session: session.execute(text("SELECT 1"))
        until(lambda: client.get("/act").status_code == 200)  # half a second may be short for a busy machine


def test_a_migration_waits_for_a_table_no_longer_than_it_may(new_database_url):
    quick = Timeouts(statement=60.0, lock=0.2, idle=60.0)
    engine = create_engine(new_database_url)
    with engine.begin() as connection:
        connection.execute(text("COMMENT ON TABLE alembic_version IS 'an older protection'"))
    with engine.begin() as holder:
        holder.execute(text("LOCK TABLE tasks IN ACCESS SHARE MODE"))
        with pytest.raises(schema_upgrade.SchemaBusy, match="lock timeout"):
            schema_upgrade.upgrade(new_database_url, quick)
    engine.dispose()


def test_one_migration_waits_for_another_however_short_a_lock_may_take(new_database_url):
    quick, engine = Timeouts(statement=60.0, lock=0.1, idle=60.0), create_engine(new_database_url)
    ended = threading.Event()

    def upgrade() -> None:
        schema_upgrade.upgrade(new_database_url, quick)
        ended.set()

    with engine.begin() as other:
        other.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": 0x6D6F746574})
        thread = threading.Thread(target=upgrade)
        thread.start()
        assert not ended.wait(1.0)
    thread.join()
    assert ended.is_set()
    engine.dispose()


def test_a_server_that_says_nothing_is_given_up_though_its_own_timeout_never_comes(settings):
    """As if the server had none: it would sleep for ten minutes."""
    patient = Database(settings.database_url, 1, replace(Timeouts(), statement=3600))
    with patient.engine.connect() as connection:
        connection.connection.driver_connection.answer_seconds = 0.2
        with pytest.raises(OperationalError, match=r"said nothing for 0\.2 s"):
            connection.execute(text("SELECT pg_sleep(600)"))
        assert connection.invalidated
    with patient.begin() as session:
        assert session.scalar(text("SELECT 1")) == 1
    patient.engine.dispose()


def test_a_circuit_breaker_lets_one_try_while_it_is_open():
    breaker = CircuitBreaker(seconds=60.0)
    assert [breaker.allows() for _ in range(3)] == [True] * 3
    breaker.failed()
    assert not breaker.allows()
    breaker._try_at = 0.0  # as when the time has passed
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.failed()
    assert not breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
