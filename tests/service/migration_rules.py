"""What a migration may do from 0.2.0 on, so that the version before it goes on working beside it (CHANGELOG.md).

Judges the SQL that reached Postgres, so it does not matter how a migration said it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

_RULES = (
    (r"^DROP (TABLE|INDEX(?! CONCURRENTLY))", "takes away what the version before may use"),
    (r"^ALTER TABLE .* DROP COLUMN", "takes away a column that the version before may use"),
    (r"^ALTER TABLE .* (DROP CONSTRAINT|RENAME)", "takes away a name that the version before may use"),
    (r"^ALTER TABLE .* ALTER COLUMN .* TYPE ", "rewrites the table under an exclusive lock"),
    (r"^ALTER TABLE .* SET NOT NULL", "reads the whole table under an exclusive lock"),
    (
        r"^ALTER TABLE .* ADD COLUMN (?=.* NOT NULL)(?!.* DEFAULT )",
        "needs a default: the version before does not write the column",
    ),
    (r"^ALTER TABLE .* ALTER COLUMN .* DROP DEFAULT", "needs a default: the version before does not write the column"),
    (r"^ALTER TABLE .* ADD (CONSTRAINT .* )?(FOREIGN KEY|CHECK)(?!.*NOT VALID)", "add it NOT VALID, and validate it apart"),
    (r"^ALTER TABLE .* ADD (CONSTRAINT .* )?(UNIQUE|PRIMARY KEY)(?! USING INDEX)", "build its index concurrently first"),
    (r"^CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)", "build it concurrently (op.get_context().autocommit_block())"),
    (r"^(UPDATE|DELETE FROM) (?!alembic_version)(?!.*\bLIMIT\b)", "touches a whole table in one transaction: go in batches"),
)
_VERSION = re.compile(
    r"^(?:UPDATE alembic_version SET version_num='|INSERT INTO alembic_version \(version_num\) VALUES \(')([^']*)"
)
_MADE = re.compile(r"^CREATE TABLE \"?(\w+)")


def broken_rules(statements: Sequence[str]) -> list[str]:
    """What of one migration's SQL breaks a rule, and why. Tables that it makes itself are nobody else's yet."""
    found, own = [], set[str]()
    for statement in (" ".join(one.split()) for one in statements):
        if made := _MADE.match(statement):
            own.add(made.group(1))
        if any(re.search(rf"(TABLE|ON|UPDATE|FROM) \"?{name}\b", statement) for name in own):
            continue
        found += [f"{statement}: {why}" for rule, why in _RULES if re.search(rule, statement)]
    return found


@contextmanager
def recorded() -> Iterator[dict[str, list[str]]]:
    """The SQL of each migration that is run meanwhile, by revision."""
    by_revision: dict[str, list[str]] = {}
    since: list[str] = []

    def heard(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if reached := _VERSION.match(statement):
            by_revision[reached.group(1)] = since.copy()
            since.clear()
        elif not statement.lstrip().startswith("SELECT"):
            since.append(statement)

    event.listen(Engine, "before_cursor_execute", heard)
    try:
        yield by_revision
    finally:
        event.remove(Engine, "before_cursor_execute", heard)
