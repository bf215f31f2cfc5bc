"""The database: one engine, one declarative base, one session per request or piece of work. Postgres is the only truth.

Knows no tables; each room declares its own in its models.py.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import BigInteger, DateTime, MetaData, String, create_engine, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """A random id that sorts by creation time: the prefix, 48 bits of milliseconds, 80 random bits."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


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


_AFTER_COMMIT = "after_commit"


def after_commit(session: Session, act: Callable[[], None]) -> None:
    """Run `act` once the session's transaction has committed, and never if it rolls back. For hints, not for truth."""
    session.info.setdefault(_AFTER_COMMIT, []).append(act)


def clock(session: Session) -> datetime:
    """The time on the database's clock, which is the only one that rows are dated by."""
    return session.scalars(select(func.clock_timestamp())).one()


class Database:
    """One engine and its sessions. `pool_size` is also how many requests may hold a connection at once."""

    def __init__(self, url: str, pool_size: int = 20) -> None:
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_pre_ping=True,
            # a server that is gone is noticed within seconds, not when the kernel gives up
            connect_args={"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3},
        )

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A session in one transaction: committed on the way out, rolled back on any error."""
        with Session(self.engine, expire_on_commit=False) as session:
            with session.begin():
                yield session
            for act in session.info.pop(_AFTER_COMMIT, ()):
                act()
