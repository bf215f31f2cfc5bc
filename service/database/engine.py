"""The database engine: one declarative base, one session per request or unit of work, callbacks after a commit.

Postgres is the only truth. Knows no tables; each room declares its own models.
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

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """A random id that sorts by creation time: the prefix, 48 bits of milliseconds, 80 random bits."""
    return f"{prefix}_" + _text((time.time_ns() // 1_000_000) << 80 | secrets.randbits(80))


def id_at(prefix: str, moment: datetime) -> str:
    """What every id of the prefix that was made before the moment sorts before."""
    return f"{prefix}_" + _text(int(moment.timestamp() * 1000) << 80)


def _text(number: int) -> str:
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


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


os.environ["PGTZ"] = "UTC"  # libpq asks for it with each connection: what we show is UTC, whatever the server's own zone
# a server that is gone is noticed within seconds, not when the kernel gives up
CONNECT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 11_000,  # ms; while something sent waits for its receipt, no keepalive asks
}
_AWAY_SECONDS = 1.0  # for so long after a connection timed out nobody tries: each would wait as long
_SLOW_SECONDS = 1.0  # a connection that failed sooner cost nobody anything
POOL_SIZE = 20  # of each role, for all processes of an API together
_LEAST = 5  # for each of them
_AFTER_COMMIT = "after_commit"
NAME_TENANT = PreparedStatement(text("SELECT set_config('motet.tenant', :tenant, true)"))  # SET LOCAL takes no parameters


def driver_url(url: str) -> str:
    """The same database, as psycopg alone takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def pool_of(processes: int) -> int:
    """Connections of a role for each of so many processes of one API."""
    return max(_LEAST, POOL_SIZE // processes)


def among_ids(column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Whether it is one of the parameter `ids`. For a statement that is made once: `in_` makes one for each number of them."""
    return column == any_(bindparam("ids", type_=ARRAY(String)))


def after_commit(session: Session, act: Callable[[], None]) -> None:
    """Run `act` once the session's transaction has committed, and never if it rolls back. For hints, not for truth."""
    session.info.setdefault(_AFTER_COMMIT, []).append(act)


def clock(session: Session) -> datetime:
    """The time on the database's clock, which is the only one that rows are dated by."""
    return session.scalars(select(func.clock_timestamp())).one()


class Noted(Protocol):
    """What watches a session's transaction."""

    def open(self, session: Session) -> None: ...
    def close(self, session: Session) -> None: ...


class Database:
    """One engine and its sessions. `pool_size` is also how many requests may hold a connection at once.

    Under the app role a session sees the rows of `tenant_id` alone, and without one no tenant's rows at all.
    """

    def __init__(self, url: str, pool_size: int = POOL_SIZE, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008  (frozen)
        self._timeouts = timeouts
        self._away: tuple[float, str] = (-math.inf, "")  # when a connection timed out, and how it was said
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_use_lifo=True,  # few connections, all of them warm: each has its own server process and prepared statements
            connect_args=CONNECT | {"options": timeouts.options},
        )
        event.listen(self.engine, "do_connect", self._connect)
        event.listen(self.engine, "checkout", self._alive)
        self._tenant_id: str | None = None
        self._note: Noted | None = None

    def of(self, tenant_id: str | None, note: "Noted | None" = None) -> Self:
        """The same engine, for this tenant: each transaction says so to row-level security. `note` sees each one begin and
        has the last word before it commits."""
        made = object.__new__(type(self))  # copy.copy takes as long as all else about a request's rights
        made.engine, made._tenant_id, made._note = self.engine, tenant_id, note
        return made

    def _connect(self, dialect: object, record: object, words: list[Any], named: dict[str, Any]) -> psycopg.Connection[Any]:
        """A connection that waits for no answer for ever. Raises psycopg.OperationalError."""
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
        """Take no connection that the server has closed. An idle one has nothing to say unless it ends, so a look at its socket
        does for nearly all; SQLAlchemy's own check asks the server each time."""
        poll = sockets.poll()
        try:
            poll.register(connection.fileno(), sockets.POLLIN)
            if poll.poll(0):
                self.engine.dialect.do_ping(connection)  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise DisconnectionError(str(error)) from error

    @property
    def in_use(self) -> int:
        """Connections that are being used now."""
        pool = self.engine.pool
        return pool.checkedout() if isinstance(pool, QueuePool) else 0

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A session in one transaction: committed on the way out, rolled back on any error."""
        with Session(self.engine, expire_on_commit=False) as session:
            with session.begin():
                if self._tenant_id is not None:
                    NAME_TENANT.run(session.connection(), {"tenant": self._tenant_id})
                if self._note is not None:
                    self._note.open(session)
                yield session
                if self._note is not None:
                    self._note.close(session)
            for act in session.info.pop(_AFTER_COMMIT, ()):
                act()
