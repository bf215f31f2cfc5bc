"""The embedded servers answer with their passwords, and to nobody without."""

import psycopg
import pytest
import redis
from sqlalchemy import create_engine, text


def test_postgres_answers(stack):
    engine = create_engine(stack.new_database())
    with engine.begin() as connection:
        assert connection.execute(text("SHOW server_version_num")).scalar_one() >= "180000"
        assert connection.execute(text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")).scalar_one() == 0
    engine.dispose()


def test_valkey_answers_again_after_a_stop(stack):
    client = redis.Redis.from_url(stack.redis_url)
    client.set("hint", "1")
    stack.stop_valkey()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    stack.start_valkey()
    assert client.get("hint") is None
    client.close()


def test_no_entry_without_the_password(stack):
    url = stack.database_url.replace("postgresql+psycopg", "postgresql")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace("motet:p", "motet:wrong"))
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(stack.redis_url.replace(":v", ":wrong")).ping()
