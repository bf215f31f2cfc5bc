"""Database roles: the owner migrates, `motet_app` serves tenants, `motet_system` plans, manages the fleet and reads API keys.

Only the owner's connection creates or changes roles. Knows no tables: row_level_security.py grants each role its rights.
"""

import psycopg
from sqlalchemy import Connection, create_engine, make_url, text

from service.database.engine import driver_url
from service.database.timeouts import Timeouts
from service.settings import SettingsError

APP, SYSTEM = "motet_app", "motet_system"
_TRIES = 5
_OPTIONS = Timeouts().options


class RoleUnfit(SettingsError):
    """A database role has too many rights or cannot log in. The message says what to do."""


def ensure(connection: Connection) -> None:
    """Create missing roles without a login (`admit` adds it). Roles belong to the whole server, not to one database."""
    for role in (APP, SYSTEM):
        # a migration of another database on this server may create them at the same time
        connection.execute(
            text(
                f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE; "
                "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            )
        )


def allow_login(owner_url: str, role: str, url: str) -> None:
    """Let the role log in with the password in `url`; changes nothing if it already can. Raises RoleUnfit."""
    made = make_url(url)
    if made.username != role:
        raise RoleUnfit(f"the database URL of {role} names the user {made.username!r}; it must be {role}")
    for attempt in range(_TRIES):
        try:
            _connect(url)
            return
        except psycopg.OperationalError as error:
            if attempt == _TRIES - 1:
                raise RoleUnfit(f"{role} cannot log in: {str(error).strip().splitlines()[0]}") from None
        _set_password(owner_url, role, made.password)


def _connect(url: str) -> None:
    psycopg.connect(driver_url(url), connect_timeout=5, options=_OPTIONS).close()


def _set_password(owner_url: str, role: str, password: str | None) -> None:
    """Set the password as a SCRAM verifier, so that the server's logs never hold the password itself."""
    with psycopg.connect(driver_url(owner_url), connect_timeout=5, options=_OPTIONS, autocommit=True) as connection:
        words = f"ALTER ROLE {role} LOGIN"
        if password is not None:
            verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
            words += f" PASSWORD '{verifier}'"
        try:
            connection.execute(words.encode())
        except psycopg.errors.InternalError_:
            return  # another process changed the role at the same time; `admit` tries to log in again


def check_role(url: str, role: str) -> None:
    """Raise RoleUnfit unless the URL logs in as this role and the role is subject to row-level security."""
    engine = create_engine(url, connect_args={"connect_timeout": 5, "options": _OPTIONS})
    try:
        with engine.connect() as connection:
            asked = "SELECT current_user, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
            name, superuser, bypasses = connection.execute(text(asked)).one()
    finally:
        engine.dispose()
    if name != role:
        raise RoleUnfit(f"the database URL of {role} logs in as {name!r}; it must be {role}")
    if superuser or bypasses:
        raise RoleUnfit(f"{role} is a superuser or may bypass row-level security: ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS")
