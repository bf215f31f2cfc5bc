"""What all tests may ask for: a real Postgres and a real Valkey, once per test process. The end says what was not run."""

import contextlib
import gc
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from contract.processes import reproducibility
from deploy.devstack.owned_process import Process, how_it_ended
from deploy.devstack.postgres import Postgres
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.stack_errors import died
from deploy.devstack.valkey import Valkey
from tests.small_disk import SmallDisk

# the cores are shared among test processes, where threads that spin while they wait would keep others from working
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
reproducibility.turn_on(os.environ)  # before anything imports torch
gc.disable()  # until all test modules are imported: scanning them again and again took a quarter of that time
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # must be chosen before anything imports a kernel

# examples have no time limit: a machine may be ten times slower, or compute something else meanwhile
# and are the same in every run; the long form draws new ones
settings.register_profile("motet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("motet"), derandomize=False)
settings.load_profile("motet")

_READY_SECONDS, _END_SECONDS = 240.0, 120.0  # a busy machine takes a minute; a test, which includes the start, has 300 s
PATIENT_REDIS = "&socket_timeout=120&socket_connect_timeout=120"  # of a URL: a server that stands still has not failed
_LONGEST = (  # they come first, in this order: short files fill the time beside the last of them
    *(
        "walk/test_crashes.py",
        "walk/test_walk.py",
        "walk/test_chaos.py",
        "walk/test_bad_nodes.py",
        "service/upgrade/test_upgrade.py",
        "worker/executor/test_executor.py",
        "worker/node/test_daemon.py",
        "test_docs.py",
    ),
    *(
        "service/background/test_queue_processes.py",
        "worker/model/test_alone.py",
        "deploy/test_devstack.py",
        "worker/replicas/test_replica_set.py",
        "worker/replicas/test_sharded_base.py",
        "worker/replicas/test_window_cuts.py",
    ),
    *("benchmarks/test_placement.py", "benchmarks/test_growth.py", "service/test_fuzz.py", "service/test_commands.py"),
    "kernels/test_triton_pass.py",
)
_HERE = Path(__file__).parent
_NO_MOUNT = pytest.StashKey[int]()
NO_BROWSER = "no browser to test in"  # what such a test says when it is skipped
_NOT_RUN = {
    "gpu": "tests that need a GPU: make test-gpu",
    "slow": "tests of the long form: make test-all",
    "heavy": "tests that take long: make test-ci",
}


class TestStack:
    """Both servers, in a folder of their own, gone after the run. Tests that stop Valkey start it again."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = Postgres(
            folder / "pg", folder / "pg", folder / "pg.log", "p" + secrets.token_hex(8), choose_account(), True
        )
        self.valkey = Valkey(folder / "vk", folder / "vk.log", "v" + secrets.token_hex(8))
        self._processes: dict[str, Process] = {}

    @property
    def database_url(self) -> str:
        """An empty database. Tests that write to one should ask for a `new_database`."""
        return self.postgres.url()

    @property
    def redis_url(self) -> str:
        return self.valkey.url() + PATIENT_REDIS

    def new_database(self, template: str = "template1") -> str:
        """The URL of a fresh database: empty, or a copy of the database named `template` (which nobody may have open)."""
        name = f"t_{secrets.token_hex(6)}"
        self.postgres.create_database(name, template)
        return self.postgres.url(name)

    def start(self) -> None:
        self._begin(self.valkey)
        self._begin(self.postgres)
        self._await(self.valkey)
        self._await(self.postgres)
        self.postgres.create_database()

    def remove(self) -> None:
        """End what runs, also where a start broke off, and delete the folder. Hides no error of the start."""
        for server in (self.valkey, self.postgres):
            if process := self._processes.get(server.name):
                try:
                    self._end(server)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        deadline = time.monotonic() + _END_SECONDS
        while self.folder.exists():  # polled: initdb and backends, which are no children of ours, delete files as they end
            for pid in _working_below(self.folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.folder, ignore_errors=True)
            if time.monotonic() > deadline:
                warnings.warn(f"{self.folder} could not be deleted", stacklevel=2)
                return

    def stop_valkey(self) -> None:
        self._end(self.valkey)

    def start_valkey(self) -> None:
        """Empty, at the same address."""
        self._begin(self.valkey)
        self._await(self.valkey)

    @contextlib.contextmanager
    def hung_valkey(self) -> Iterator[None]:
        """Valkey stopped, not ended: it takes connections and answers nothing."""
        with _stopped([self._processes[self.valkey.name].pid]):
            yield

    @contextlib.contextmanager
    def hung_postgres(self) -> Iterator[None]:
        """The same of Postgres, with all its processes; first the one that makes the others."""
        with _stopped([self._processes[self.postgres.name].pid]), _stopped(self.postgres.processes()):
            yield

    def _end(self, server: Postgres | Valkey) -> None:
        process = self._processes.pop(server.name)
        process.send_signal(server.asks)
        process.wait(_END_SECONDS)

    def _begin(self, server: Postgres | Valkey) -> None:
        self._processes[server.name] = server.start()

    def _await(self, server: Postgres | Valkey) -> None:
        process = self._processes[server.name]
        deadline = time.monotonic() + _READY_SECONDS
        while not server.ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise died(server.name, how_it_ended(process.wait(0.03)), server.log)
            assert time.monotonic() < deadline, f"{server.name} is not ready after {_READY_SECONDS} s"


def _working_below(folder: Path) -> list[int]:
    """Pids of the processes whose working directory is below the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or of another user
            if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """Some may have ended since they were listed."""

    def tell(number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    try:
        tell(signal.SIGSTOP)
        yield
    finally:
        tell(signal.SIGCONT)


@pytest.fixture(scope="session")
def stack() -> Iterator[TestStack]:
    servers = TestStack(Path(tempfile.mkdtemp(prefix="motet-", dir="/tmp")).resolve())
    try:
        servers.start()
        yield servers
    finally:
        servers.remove()


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """A file system of 8 MiB."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False)
    if made.returncode != 0:
        request.config.stash[_NO_MOUNT] = request.config.stash.get(_NO_MOUNT, 0) + 1
        pytest.skip("this account may not mount a small file system")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three test processes for two cores that this process may use (the machine may have more): tests wait for other processes
    about a third of the time."""
    cores = len(os.sched_getaffinity(0))
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or cores + cores // 2)


class NotRun:
    """Counts what a marker kept from running, and says so last. Test processes send their counts to the one that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.counts = dict.fromkeys(_NOT_RUN, 0)
        self._sent: dict[str, object] | None = getattr(config, "workeroutput", None)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            if marker := next((name for name in _NOT_RUN if item.get_closest_marker(name)), None):
                self.counts[marker] += 1

    def pytest_sessionfinish(self) -> None:
        if self._sent is not None:
            self._sent["not_run"] = self.counts

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts = getattr(node, "workeroutput", {}).get("not_run", self.counts)  # every process deselects the same

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if unmounted := terminalreporter.config.stash.get(_NO_MOUNT, 0):
            terminalreporter.write_line(f"NOT RUN: {unmounted} tests of a full disk: this account may not mount one")
        skipped = terminalreporter.stats.get("skipped", [])
        if unseen := sum(isinstance(one.longrepr, tuple) and NO_BROWSER in one.longrepr[2] for one in skipped):
            terminalreporter.write_line(f"NOT RUN: {unseen} tests in a browser: docs/OPERATIONS.md, Dashboard, says how")
        for marker, count in self.counts.items():
            if count:
                terminalreporter.write_line(f"NOT RUN: {count} {_NOT_RUN[marker]}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes stay out of names: all test processes must find the same ones, and a gzip's header holds the second."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {_HERE / name: place for place, name in enumerate(_LONGEST)}
    assert [path for path in places if not path.exists()] == []
    items.sort(key=lambda item: places.get(item.path, len(places)))
    heavy = _heavy()
    for item in items:
        if (item.path, "") in heavy or (item.path, item.name.partition("[")[0]) in heavy:
            item.add_marker(pytest.mark.heavy)


def _heavy() -> set[tuple[Path, str]]:
    """Files of heavy.txt, each with the name of a test, or none for all that it has."""
    lines = (_HERE / "heavy.txt").read_text().splitlines()
    found = {(_HERE / name, test) for name, _, test in (line.partition("::") for line in lines if not line.startswith("#"))}
    wrong = sorted(str(path) for path, test in found if not path.exists() or (test and f"def {test}(" not in path.read_text()))
    assert wrong == [], "heavy.txt names what is not there"
    return found


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules and tests live as long as the process: a collection that scans them takes half a second
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NotRun(config))
    if "not slow" not in config.option.markexpr:
        settings.load_profile("long")
