"""Plain statements: their constants go along, and what the driver raises is what SQLAlchemy would have raised."""

import pytest
from sqlalchemy import column, literal, select, text
from sqlalchemy.exc import DataError, OperationalError

from service.database.prepared_statements import PreparedStatement

PID = PreparedStatement(text("SELECT pg_backend_pid()"))


def test_it_finds_rows_with_its_constants_and_with_what_it_is_given(database):
    statement = PreparedStatement(
        select(literal(7), text("CAST(:name AS text)"), column("n")).select_from(text("generate_series(1, 2) n"))
    )
    with database.begin() as session:
        assert statement.run(session.connection(), {"name": "a%b"}) == [(7, "a%b", 1), (7, "a%b", 2)]


def test_one_that_finds_no_rows_finds_none(database):
    with database.begin() as session:
        assert PreparedStatement(text("SET LOCAL statement_timeout = 1000")).run(session.connection(), {}) == []


def test_what_cannot_be_stored_is_sqlalchemys_error(database):
    with pytest.raises(DataError), database.begin() as session:
        PreparedStatement(text("SELECT CAST(:said AS text)")).run(session.connection(), {"said": "a\0b"})
    with pytest.raises(DataError), database.begin() as session:
        PreparedStatement(text("SELECT CAST(:said AS jsonb)")).run(session.connection(), {"said": '"\\u0000"'})


def test_a_connection_that_is_lost_meanwhile_is_not_used_again(database):
    with database.begin() as session:
        ((lost,),) = PID.run(session.connection(), {})
        with database.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": lost})
        with pytest.raises(OperationalError) as raised:
            PID.run(session.connection(), {})
        session.rollback()
    assert raised.value.connection_invalidated
    with database.begin() as session:
        assert PID.run(session.connection(), {}) != [(lost,)]


def test_a_statement_that_is_never_worked_out_once_is_refused():
    with pytest.raises(ValueError, match=r"in_\(\) is expanded at each execution"):
        PreparedStatement(select(column("n")).where(column("n").in_([1, 2])))
