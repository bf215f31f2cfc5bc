"""The database engine: one declarative base, one session per request or unit of work, callbacks after a commit.

Postgres is the only truth. Knows no tables; each domain package declares its own models.
"""

import math
import os
import secrets
import select as sockets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Protocol, Self

import psycopg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    MetaData,
    QueuePool,
    String,
    any_,
    bindparam,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session, mapped_column

from service.database.prepared_statements import PreparedStatement
from service.database.timeouts import Connection, Timeouts

ID_CHARACTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32; of ids, after their prefix


def new_id(prefix: str) -> str:
    """A random id that sorts by creation time: the prefix, 48 bits of milliseconds, 80 random bits."""
    return f"{prefix}_" + _text((time.time_ns() // 1_000_000) << 80 | secrets.randbits(80))


def id_at(prefix: str, moment: datetime) -> str:
    """The lower bound of ids created from this moment on: earlier ids of the prefix sort before it."""
    return f"{prefix}_" + _text(int(moment.timestamp() * 1000) << 80)


def _text(number: int) -> str:
    return "".join(ID_CHARACTERS[number >> shift & 31] for shift in range(125, -1, -5))


Id = Annotated[str, mapped_column(String(40), primary_key=True)]
Json = Annotated[dict[str, Any], mapped_column(JSONB)]
Big = Annotated[int, mapped_column(BigInteger)]
Now = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())]
At = Annotated[datetime, mapped_column(DateTime(timezone=True))]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


os.environ["PGTZ"] = "UTC"  # libpq sets it on each connection, so times come back in UTC whatever the server's zone
# detect a lost server within seconds, before the kernel's own timeout
CONNECT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 11_000,  # ms; TCP sends no keepalives while data is unacknowledged
}
_AWAY_SECONDS = 1.0  # after a connect timed out, connects fail at once for this long, or each would wait as long
_SLOW_SECONDS = 1.0  # a connect that fails faster than this does not start that pause
POOL_SIZE = 20  # connections per role, shared by all API processes
_LEAST = 5  # per process
_AFTER_COMMIT = "after_commit"
CHANNEL = "motet_tasks"  # of notices, which every API process listens to; a payload is task ids, separated by spaces
NAME_TENANT = PreparedStatement(text("SELECT set_config('motet.tenant', :tenant, true)"))  # SET LOCAL takes no parameters


def driver_url(url: str) -> str:
    """The SQLAlchemy URL as psycopg takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def pool_of(processes: int) -> int:
    """Pool size per role and process, for an API of `processes` processes."""
    return max(_LEAST, POOL_SIZE // processes)


def among_ids(column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """The condition that `column` is in the parameter `ids`. Unlike `in_`, it compiles once for any number of ids."""
    return column == any_(bindparam("ids", type_=ARRAY(String)))


def after_commit(session: Session, act: Callable[[], None]) -> None:
    """Run `act` after the session's transaction commits, never if it rolls back. A crash may skip it: for wake-ups only."""
    session.info.setdefault(_AFTER_COMMIT, []).append(act)


def clock(session: Session) -> datetime:
    """The database's clock, the only one that dates rows."""
    return session.scalars(select(func.clock_timestamp())).one()


class TransactionObserver(Protocol):
    """An observer of a session's transaction."""

    def attach(self, session: Session) -> None: ...
    def write_entry(self, session: Session) -> None: ...


class Database:
    """One engine and its sessions. `pool_size` limits the connections in use at once.

    Under the app role a session sees only the rows of `tenant_id`; without a tenant it sees no tenant's rows.
    """

    def __init__(self, url: str, pool_size: int = POOL_SIZE, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008  (frozen)
        self._timeouts = timeouts
        self._away: tuple[float, str] = (-math.inf, "")  # when the last connect timed out, and its error
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_use_lifo=True,  # reuses few, warm connections: each has its own server process and prepared statements
            connect_args=CONNECT | {"options": timeouts.options},
        )
        event.listen(self.engine, "do_connect", self._connect)
        event.listen(self.engine, "checkout", self._alive)
        self._tenant_id: str | None = None
        self._note: TransactionObserver | None = None

    def for_tenant(self, tenant_id: str | None, note: "TransactionObserver | None" = None) -> Self:
        """The same engine, bound to a tenant: each transaction names it for row-level security. `note.attach`
        runs when a transaction begins, `note.write_entry` just before it commits."""
        made = object.__new__(type(self))  # copy.copy would double the time of a request's authorization
        made.engine, made._tenant_id, made._note = self.engine, tenant_id, note
        return made

    def _connect(self, dialect: object, record: object, words: list[Any], named: dict[str, Any]) -> psycopg.Connection[Any]:
        """Open a connection that limits its wait for each answer. Raises psycopg.OperationalError."""
        when, why = self._away
        began = time.monotonic()
        if began < when + _AWAY_SECONDS:
            raise psycopg.OperationalError(why)
        try:
            made = Connection.connect(*words, **named)
        except psycopg.OperationalError as error:
            if (now := time.monotonic()) - began > _SLOW_SECONDS:
                self._away = now, str(error)
            raise
        made.answer_seconds = self._timeouts.answer
        return made

    def _alive(self, connection: psycopg.Connection, *_: object) -> None:
        """Refuse a pooled connection that the server has closed. An idle connection's socket is readable only if it ended, so
        polling it replaces SQLAlchemy's pre-ping, which costs a round trip each time."""
        poll = sockets.poll()
        try:
            poll.register(connection.fileno(), sockets.POLLIN)
            if poll.poll(0):
                self.engine.dialect.do_ping(connection)  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise DisconnectionError(str(error)) from error

    @property
    def in_use(self) -> int:
        """Connections checked out of the pool now."""
        pool = self.engine.pool
        return pool.checkedout() if isinstance(pool, QueuePool) else 0

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A session in one transaction: commits at the end of the block, rolls back on any error."""
        with Session(self.engine, expire_on_commit=False) as session:
            with session.begin():
                if self._tenant_id is not None:
                    NAME_TENANT.run(session.connection(), {"tenant": self._tenant_id})
                if self._note is not None:
                    self._note.attach(session)
                yield session
                if self._note is not None:
                    self._note.write_entry(session)
            for act in session.info.pop(_AFTER_COMMIT, ()):
                act()
