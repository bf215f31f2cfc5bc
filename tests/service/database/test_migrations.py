"""The migrations make exactly the tables the rooms declare, once, and the service knows when they are missing."""

import subprocess
import sys

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from service.database import schema


def test_models_and_migrations_agree(database_url):
    with create_engine(database_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []


def test_a_downgrade_leaves_nothing_and_the_way_up_is_open_again(stack):
    url = stack.new_database()
    schema.upgrade(url)
    command.downgrade(schema.config(url), "base")
    assert inspect(create_engine(url)).get_table_names() == ["alembic_version"]
    schema.upgrade(url)
    schema.check(create_engine(url))


def test_some_that_migrate_at_once_take_turns(stack, settings_for, environment_of, tmp_path):
    url = stack.new_database()
    environment = environment_of(settings_for(url, tmp_path))
    command = [sys.executable, "-m", "service", "migrate"]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    schema.check(create_engine(url))


def test_a_database_without_tables_is_refused(stack):
    with pytest.raises(schema.SchemaBehind, match="python -m service migrate"):
        schema.check(create_engine(stack.new_database()))


def test_a_newer_database_is_served(new_database_url):
    engine = create_engine(new_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'of tomorrow'"))
    schema.check(engine)
