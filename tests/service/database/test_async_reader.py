"""The event loop's own connection: it answers each tenant with its own rows, and anew after anything has broken it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import select, text
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError

from service.database import async_reader as line_module
from service.database.async_reader import AsyncReader
from service.database.engine import Database, clock, driver_url
from service.database.prepared_statements import PreparedStatement
from service.tasks.models import Task

PID = PreparedStatement(text("SELECT pg_backend_pid()"))
TASKS = PreparedStatement(select(Task.id).order_by(Task.id))  # no filter: what holds here is row-level security


@pytest.fixture
def line(settings) -> AsyncReader:
    return AsyncReader(settings.app_database_url)


async def ask(line: AsyncReader, tenant_id: str, statement: PreparedStatement, **given: Any) -> list[Any]:
    (found,) = await line.look(tenant_id, [statement], given)
    return await found.fetchall()


def asked(line: AsyncReader, body: Coroutine[Any, Any, Any]) -> Any:
    async def run() -> Any:
        try:
            return await body
        finally:
            await line.close()

    return asyncio.run(run())


def test_each_tenant_sees_its_own_rows_and_nobody_none(line, tenant, new_tenant):
    other = new_tenant()
    mine, theirs = tenant.task()["id"], other.task()["id"]

    async def body() -> list[Any]:
        tenant_parameter = (tenant.tenant_id, other.tenant_id, "tenant_none", tenant.tenant_id)
        return [await ask(line, one, TASKS) for one in tenant_parameter]

    assert asked(line, body()) == [[(mine,)], [(theirs,)], [], [(mine,)]]


def test_all_statements_of_a_question_see_one_moment(line):
    async def body() -> list[Any]:
        found = await line.look(
            "t", [PreparedStatement(text(f"SHOW transaction_{name}")) for name in ("isolation", "read_only")], {}
        )
        return [await cursor.fetchone() for cursor in found]

    assert asked(line, body()) == [("repeatable read",), ("on",)]


def test_one_connection_for_all_questions_and_no_transaction_left_open(line, database):
    async def body() -> tuple[Any, ...]:
        pids = [await ask(line, "t", PID) for _ in range(9)]
        with database.begin() as session:
            state = session.scalars(text("SELECT state FROM pg_stat_activity WHERE pid = :pid"), {"pid": pids[0][0][0]}).one()
        return pids, state

    pids, state = asked(line, body())
    assert len({pid for ((pid,),) in pids}) == 1
    assert state == "idle"


def test_times_are_utc_whatever_the_servers_zone(settings, stack):
    name = sql.Identifier(driver_url(settings.database_url).rpartition("/")[2].partition("?")[0])
    with stack.postgres.connect() as owner:
        owner.execute(sql.SQL("ALTER DATABASE {} SET timezone TO 'Asia/Kathmandu'").format(name))
        try:
            line, database = AsyncReader(settings.app_database_url), Database(settings.app_database_url, 1)
            ((told,),) = asked(line, ask(line, "t", PreparedStatement(text("SELECT clock_timestamp()"))))
            with database.begin() as session:
                assert {told.isoformat()[-6:], clock(session).isoformat()[-6:]} == {"+00:00"}
            database.engine.dispose()
        finally:
            owner.execute(sql.SQL("ALTER DATABASE {} RESET timezone").format(name))


def test_a_connection_that_the_server_closed_is_opened_anew(line, database):
    async def body() -> list[Any]:
        ((lost,),) = await ask(line, "t", PID)
        with database.begin() as session:
            session.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": lost})
        return [(lost,), *await ask(line, "t", PID)]

    lost, found = asked(line, body())
    assert lost != found


@pytest.mark.parametrize(
    ("statement", "given", "raised"),
    [
        ("SELECT CAST(:said AS text)", {"said": "a\0b"}, DataError),
        ("SELECT CAST(:said AS jsonb)", {"said": '"\\u0000"'}, DataError),
        ("SELECT no_such_column", {}, ProgrammingError),
    ],
)
def test_what_fails_is_sqlalchemys_error_and_the_next_question_is_answered(line, statement, given, raised):
    async def body() -> list[Any]:
        with pytest.raises(raised):
            await ask(line, "t", PreparedStatement(text(statement)), **given)
        return await ask(line, "t", PID)

    assert len(asked(line, body())) == 1


def test_a_server_that_is_away_is_said_to_be(settings):
    away = AsyncReader("postgresql+psycopg://motet@127.0.0.1:1/motet")

    async def body() -> None:
        for _ in range(2):
            with pytest.raises(OperationalError):
                await ask(away, "t", PID)

    asked(away, body())


def test_nobody_waits_in_turn_for_a_server_that_says_nothing(monkeypatch):
    """A caller whose turn comes within a moment of a failed attempt gets that attempt's error."""
    monkeypatch.setattr(line_module, "_AWAY_SECONDS", 600.0)  # the moment, longer than this test takes
    attempts: list[str] = []

    async def fails(url: str, **how: Any) -> None:
        attempts.append(url)
        raise psycopg.OperationalError("connection timeout expired")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", fails)
    away = AsyncReader("postgresql+psycopg://motet@127.0.0.1:1/motet")

    async def body() -> None:
        for _ in range(20):
            with pytest.raises(OperationalError, match="timeout expired"):
                await ask(away, "t", PID)
        assert len(attempts) == 1
        away._away = away._away[0] - line_module._AWAY_SECONDS, away._away[1]
        with pytest.raises(OperationalError):
            await ask(away, "t", PID)
        assert len(attempts) == 2

    asked(away, body())


def test_a_question_that_the_server_breaks_off_is_not_asked_again(line, monkeypatch):
    questions: list[PreparedStatement] = []
    really = line_module._ask

    async def counted(connection: Any, tenant_id: str, statements: list[PreparedStatement], parameters: Any) -> Any:
        questions.extend(statements)
        return await really(connection, tenant_id, statements, parameters)

    monkeypatch.setattr(line_module, "_ask", counted)

    async def body() -> None:
        await ask(line, "t", PID)
        with pytest.raises(OperationalError):
            await ask(line, "t", PreparedStatement(text("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(30)")))

    asked(line, body())
    assert len(questions) == 2


def test_who_gives_up_in_the_middle_leaves_no_half_question(line):
    async def body() -> list[Any]:
        await ask(line, "t", PID)
        slow = asyncio.ensure_future(ask(line, "t", PreparedStatement(text("SELECT pg_sleep(30)"))))
        await asyncio.wait([slow], timeout=0.1)
        slow.cancel()
        await asyncio.wait([slow])
        assert slow.cancelled()
        return await ask(line, "t", PID)

    assert len(asked(line, body())) == 1
