"""A full disk on a node: checkpoints, adapters, downloads and token streams wait for room; nothing is lost, and all of it goes
on by itself once there is room."""

import contextlib
import itertools
import logging
import shutil
import subprocess
import sys
import threading

import pytest

from contract.messages.report_messages import PlacementFailed
from tests.worker.corpus import jsonl, rows
from tests.worker.inside import Inside
from worker.boot_clock import boot_now
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache
from worker.executor.placement.placement_lease import Lease
from worker.executor.retry import persist
from worker.pipe_messages import ExecutorProgress, PlacementEnded

SPACE = {"learning_rate": [1e-2], "rank": [4], "batch_size": [4]}
SHORT = {"max_steps": 12}


@pytest.fixture
def waits(caplog):
    """Set when something has said that it waits for room."""
    said = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "failed and is retried: the disk of" in record.getMessage():
                said.set()

    handler = Heard()
    logging.getLogger("worker").addHandler(handler)
    yield said
    logging.getLogger("worker").removeHandler(handler)


def freeing(disk, waits) -> threading.Thread:
    """Make room once something waits for it."""

    def free() -> None:
        if waits.wait(120):
            disk.free()

    thread = threading.Thread(target=free)
    thread.start()
    return thread


class UntilFreed:
    """Fills a disk over and over, up to the moment at which it is freed: a later fill would be freed by nobody."""

    def __init__(self, disk) -> None:
        self._disk, self._freed, self._lock = disk, False, threading.Lock()

    def fill(self) -> None:
        with self._lock:
            if not self._freed:
                self._disk.fill()

    def free(self) -> None:
        with self._lock:
            self._freed = True
            self._disk.free()


class FewFiles:
    """A disk that has bytes, and takes neither a file nor a folder until `free`."""

    def __init__(self, folder, files: int) -> None:
        self.folder, self._fillers = folder, folder / "filler"
        subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", str(folder)], check=True)

    def fill(self) -> None:
        self._fillers.mkdir()
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self._fillers / str(number)).touch()

    def free(self) -> None:
        shutil.rmtree(self._fillers)


def waits_for_disk(news: ExecutorProgress | PlacementEnded) -> bool:
    return isinstance(news, ExecutorProgress) and any(
        "waits for room in MOTET_WORKER_DIR" in why for why in news.waits.values()
    )


def ends(reported) -> dict[str, object]:
    """What a task leaves: its curves and its adapter's bytes."""
    adapter = {file.path: file.sha256 for file in reported.manifests[0].files}
    return {"curves": dict(reported.curves), "adapter": adapter, "kinds": {event.kind for event in reported.ended.values()}}


@pytest.mark.parametrize("moment", ["before", "in training", "at the end"])
def test_a_task_on_a_full_disk_ends_as_it_does_elsewhere(fleet, placing, tmp_path, small_disk, waits, moment):
    (elsewhere,) = Inside(fleet, tmp_path / "roomy").run(placing(SPACE, training=SHORT))
    disk = UntilFreed(small_disk)
    if moment == "before":
        disk.fill()

    def prepare(executor):
        """Fill the disk before the first checkpoint, or before the last step, until somebody has noticed."""
        iterate, at = executor._iterate, 0 if moment == "in training" else SHORT["max_steps"] - 1

        def filling(replicas):
            tasks = executor._attached.open
            steps = [run.step for task in tasks for run in task.runs]
            if moment != "before" and max(steps, default=-1) >= at and not waits.is_set():
                disk.fill()  # freed already where the daemon was told before the log was
            iterate(replicas)
            if moment == "in training" and any(task.checkpointing for task in tasks):
                assert waits.wait(120), "however late it is written, it finds no room"

        executor._iterate = filling

    told = threading.Event()  # the daemon, which tells the service
    thread = freeing(disk, told)
    inside = Inside(fleet, small_disk.folder, worker_checkpoint_seconds=1e-6 if moment == "in training" else 3600)
    inside.on_news = lambda news: told.set() if waits_for_disk(news) else None
    (reported,) = inside.run(placing(SPACE, training=SHORT), prepare=prepare)
    told.set()  # a short wait may be over before the next progress message
    thread.join()
    assert waits.is_set(), "the disk was full, and somebody noticed"
    assert ends(reported) == ends(elsewhere)
    assert [ended.lost for ended in inside.ended] == [False]


def test_what_waits_for_room_says_so_until_it_has_some():
    lease, said = Lease("p1", 1, "token", boot_now() + 60), []

    def attempt() -> None:
        said.append(lease.waits_for)
        if len(said) < 3:
            raise DiskFull("the disk of /here/tenants/somebody is full")

    persist(lease, "a download", attempt)
    assert said == [None, *["a download waits for room in MOTET_WORKER_DIR"] * 2]
    assert lease.waits_for is None


def test_caches_give_their_room_before_anything_waits(small_disk):
    cache = NodeCache(small_disk.folder / "tenants")
    kept = cache.file("t1", "a" * 64).content.keep(lambda path: path.write_bytes(bytes(2**20)), name="a" * 64)
    small_disk.fill()
    scratch = cache.objects("t1")
    with pytest.raises(DiskFull, match="make room there"), cache.relief():
        scratch.keep(lambda path: path.write_bytes(bytes(2**19)))
    assert not kept.path.exists()
    assert scratch.keep(lambda path: path.write_bytes(bytes(2**19))).path.exists()
    assert not list(scratch.folder.glob("new-*")), "nothing of the failed write stays"


@pytest.mark.parametrize(
    "setup", ["worker.stderr_logging as logs; logs.log_to_stderr()", "service.json_logging as logs; logs.configure()"]
)
def test_logs_without_room_stop_nobody(setup):
    code = f"import logging, {setup}\nfor n in range(10000): logging.warning('line %d', n)\nprint('went on')"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stderr=full, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout == "went on\n"


def test_a_download_onto_a_full_disk_is_whole_later(small_disk):
    content = jsonl(rows(3000))
    scratch = ObjectCache(small_disk.folder / "objects")
    small_disk.fill()
    with pytest.raises(DiskFull):
        scratch.keep(lambda path: path.write_bytes(content))
    small_disk.free()
    kept = scratch.keep(lambda path: path.write_bytes(content))
    assert kept.path.read_bytes() == content


def test_a_disk_that_takes_no_folder_is_waited_for_as_a_full_one(fleet, placing, small_disk, waits):
    disk = FewFiles(small_disk.folder, 100)
    thread = freeing(disk, waits)
    (reported,) = Inside(fleet, disk.folder).run(placing(SPACE, training=SHORT), prepare=lambda executor: disk.fill())
    thread.join()
    assert waits.is_set()
    assert reported.ended
    assert not reported.of(PlacementFailed)
