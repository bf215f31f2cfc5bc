"""Who waits for a lock, for tests that hold one in a transaction of their own."""

from sqlalchemy import text

from service.database.engine import Database


def waiting_for_locks(database: Database) -> int:
    """How many transactions of this database wait for a lock."""
    with database.begin() as session:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
        return session.scalars(waiting).one()
