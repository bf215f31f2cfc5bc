"""The migrations make exactly the tables the rooms declare, once, and the service knows when they are missing."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from service.schema import schema_upgrade
from tests.service.live_server import PATIENCE
from tests.service.migration_rules import broken_rules, recorded

SCRIPTS = [script.revision for script in ScriptDirectory.from_config(schema_upgrade.config("")).walk_revisions()]
BASELINE = {"0001"}  # what 0.2.0 begins with


def test_models_and_migrations_agree(database_url):
    with create_engine(database_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema_upgrade.metadata) == []


def test_migrations_let_the_version_before_go_on(stack):
    with recorded() as by_revision:
        schema_upgrade.upgrade(stack.new_database())
    assert len(by_revision) == len(SCRIPTS)
    broken = {revision: broken_rules(by_revision[revision]) for revision in SCRIPTS if revision not in BASELINE}
    assert {revision: rules for revision, rules in broken.items() if rules} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE jobs",
        "ALTER TABLE tasks DROP COLUMN spec",
        "ALTER TABLE tasks RENAME spec TO said",
        "ALTER TABLE tasks ALTER COLUMN name TYPE TEXT",
        "ALTER TABLE tasks ADD COLUMN a INTEGER NOT NULL",
        "ALTER TABLE tasks ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE tasks ADD CONSTRAINT fk FOREIGN KEY(a) REFERENCES jobs (id)",
        "ALTER TABLE tasks ADD CONSTRAINT u UNIQUE (a)",
        "CREATE INDEX i ON tasks (a)",
        "UPDATE tasks SET a = 1",
        "DELETE FROM point_chunks WHERE hidden_by IS NOT NULL",
    ],
)
def test_a_migration_that_would_stop_the_version_before_is_found(statement):
    assert len(broken_rules([statement])) == 1


def test_what_a_migration_may_do():
    assert (
        broken_rules(
            [
                "ALTER TABLE tasks ADD COLUMN a INTEGER",
                "ALTER TABLE tasks ADD COLUMN b JSONB DEFAULT '{}' NOT NULL",
                "CREATE TABLE news (\n id INTEGER NOT NULL )",
                "CREATE INDEX i ON news (id)",
                "CREATE INDEX CONCURRENTLY i ON tasks (a)",
                "ALTER TABLE tasks ADD CONSTRAINT c CHECK (a > 0) NOT VALID",
                "UPDATE tasks SET a = 1 WHERE id IN (SELECT id FROM tasks WHERE a IS NULL LIMIT 1000)",
                "UPDATE alembic_version SET version_num='2'",
            ]
        )
        == []
    )


def test_a_migration_waits_for_a_lock_only_so_long_and_tries_again(stack, template, monkeypatch):
    """Statements that wait behind it for the same table have a turn in between."""
    url, tried = stack.new_database(template), threading.Event()
    monkeypatch.setattr(schema_upgrade.log, "warning", lambda *_: tried.set())
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("COMMENT ON TABLE alembic_version IS 'an older protection'"))
    with engine.connect() as holder, ThreadPoolExecutor(1) as other:
        holder.execute(text("LOCK TABLE tasks IN ACCESS SHARE MODE"))
        upgraded = other.submit(schema_upgrade.upgrade, url)
        assert tried.wait(PATIENCE)
        with engine.begin() as meanwhile:
            meanwhile.execute(text("SET LOCAL lock_timeout = '120s'"))
            meanwhile.execute(text("SELECT count(*) FROM tasks"))
        assert not upgraded.done()
        holder.rollback()
        upgraded.result(PATIENCE)
    engine.dispose()


def test_a_database_of_a_newer_version_is_left_as_it_is(new_database_url):
    engine = create_engine(new_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'of tomorrow'"))
        connection.execute(text("COMMENT ON TABLE alembic_version IS 'protection of tomorrow'"))
    schema_upgrade.upgrade(new_database_url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT obj_description('alembic_version'::regclass)")) == "protection of tomorrow"
    schema_upgrade.check_revision(engine)


def test_a_downgrade_leaves_nothing_and_the_way_up_is_open_again(stack):
    url = stack.new_database()
    schema_upgrade.upgrade(url)
    command.downgrade(schema_upgrade.config(url), "base")
    assert inspect(create_engine(url)).get_table_names() == ["alembic_version"]
    schema_upgrade.upgrade(url)
    schema_upgrade.check_revision(create_engine(url))


def test_some_that_migrate_at_once_take_turns(stack, settings_for, environment_of, tmp_path):
    url = stack.new_database()
    environment = environment_of(settings_for(url, tmp_path))
    command = [sys.executable, "-m", "service", "migrate"]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    schema_upgrade.check_revision(create_engine(url))


def test_a_database_without_tables_is_refused(stack):
    with pytest.raises(schema_upgrade.SchemaBehind, match="python -m service migrate"):
        schema_upgrade.check_revision(create_engine(stack.new_database()))


def test_a_newer_database_is_served(new_database_url):
    engine = create_engine(new_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'of tomorrow'"))
    schema_upgrade.check_revision(engine)
