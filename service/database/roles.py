"""The three database roles: the owner migrates, `motet_app` serves tenants, `motet_system` plans, leads the fleet, knows keys.

Only the owner's connection makes roles or changes them. Knows no tables: row_level_security.py says what each role may do
with them.
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
    """A database role that may do too much, or that is not there. The message says what to do."""


def ensure(connection: Connection) -> None:
    """Make both roles where they are missing, without a password: nobody can log in as them yet. Roles are the server's."""
    for role in (APP, SYSTEM):
        # others may do the same at this moment, from another database of the server
        connection.execute(
            text(
                f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE; "
                "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            )
        )


def admit(owner_url: str, role: str, url: str) -> None:
    """Let the role log in as `url` says, which names its password. One that can already is left alone. Raises RoleUnfit."""
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
    """Sent as its SCRAM verifier: the password itself is in no log of the server."""
    with psycopg.connect(driver_url(owner_url), connect_timeout=5, options=_OPTIONS, autocommit=True) as connection:
        words = f"ALTER ROLE {role} LOGIN"
        if password is not None:
            verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
            words += f" PASSWORD '{verifier}'"
        try:
            connection.execute(words.encode())
        except psycopg.errors.InternalError_:
            return  # somebody else changed the role at this very moment; whoever asked looks again


def check(url: str, role: str) -> None:
    """Raise RoleUnfit unless the URL logs in as this role and row-level security binds it."""
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
