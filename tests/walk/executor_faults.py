"""Faults of an executor that four tenants share, one a round, each at a moment from the round's seed.

Each strikes while all four tasks are there. Where the fault is a tenant's own task, it stands in the place of its healthy one.
"""

import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.walk.running_stack import ENDED, gsm8k, stopped
from tests.walk.shared_executor import SharedExecutor

STALL = 5  # seconds without progress after which the service gives an executor up
DETACH = 12  # and a little more than those after which its daemon kills it
PATIENT = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "1",
    "MOTET_QUARANTINE_SECONDS": "6",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_STALL_SECONDS": "60",
}
# of a stack; the latter only where an executor is to stall: there a pause of a busy machine is a loss too
QUICK = {**PATIENT, "MOTET_LEASE_SECONDS": "6", "MOTET_STALL_SECONDS": str(STALL)}
# bytes that an executor still gets, beside up to 64 MiB that it has and does not use: enough for short rows; too little for one
# of _LONGEST tokens, which takes about 140 MiB, or 40 if it recomputes
_HEADROOM = (16 << 20, 48 << 20)
_LONGEST = 900
_WATCHFUL = {"policy": "alto", "warmup_fraction": 1.0, "eval_every": 4, "tau_gap": 10.0}

Refused = Callable[[int, int], AbstractContextManager[None]]  # a process, and the bytes that it still gets


@contextmanager
def refused_main_memory(pid: int, more: int) -> Iterator[None]:
    """The kernel refuses the process all but so many bytes more."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (data,) = [line.split()[1] for line in lines if line.startswith("VmData")]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, ((int(data) << 10) + more, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))


class Round:
    """One round: its tasks by tenant, which of them is the bad one, and who was there when an executor was lost."""

    def __init__(self, shared: SharedExecutor, seed: int, refused: Refused = refused_main_memory) -> None:
        self.shared, self.random, self.refused = shared, random.Random(seed), refused
        self.tasks: dict[int, str] = {}
        self.bad: int | None = None
        self.there = Counter[int]()  # by tenant: executors that were lost while they had its task

    @property
    def healthy(self) -> dict[int, str]:
        return {at: task for at, task in self.tasks.items() if at != self.bad}

    def begin(self) -> None:
        """The first task trains, as far as the seed says."""
        self.tasks[0] = self.shared.submit(0)
        self.shared.trains(0, self.tasks[0], self.random.randint(1, 8))

    def join(self, **bad: Any) -> None:
        """The others join it, the bad one with these changes of its healthy spec, and all healthy ones are there at once."""
        self.submit(**bad)
        self.shared.together(self.healthy)

    def submit(self, **bad: Any) -> None:
        """Submit the others."""
        for at in range(1, len(self.shared.specs)):
            self.tasks[at] = self.shared.submit(at, **(bad if at == self.bad else {}))

    def together(self) -> None:
        """Four healthy tasks are there, one of which has come as far as the seed says."""
        self.begin()
        self.join()
        at = self.random.randrange(1, len(self.shared.specs))
        self.shared.trains(at, self.tasks[at], self.random.randint(1, 8))

    def choose_bad(self) -> Mapping[str, Any]:
        """Whose task is the bad one; its healthy spec. The first's is the one that the others join."""
        self.bad = self.random.randrange(1, len(self.shared.specs))
        return self.shared.specs[self.bad]

    def upload(self, rows: list[dict[str, Any]]) -> dict[str, str]:
        assert self.bad is not None
        tenant = self.shared.tenants[self.bad]
        file = self.shared.motet.upload(rows, tenant.http)
        tenant.own.add(file)
        return {"file_id": file}

    def strike(self, pid: int, number: signal.Signals) -> None:
        """Send the signal to an executor: it will be lost under all whose tasks it has."""
        self.there.update(self.shared.on(pid, self.tasks))
        os.kill(pid, number)


def kill_executor(it: Round) -> None:
    it.together()
    it.strike(it.shared.executor(), signal.SIGKILL)


def kill_daemon(it: Round) -> None:
    """Its executors end with it, and the node comes back: nobody is blamed."""
    it.together()
    os.kill(it.shared.motet.pids["worker"], signal.SIGKILL)


def stop_executor(it: Round) -> None:
    """It sleeps past the limit, and wakes up before or after its daemon has killed it."""
    it.together()
    pid = it.shared.executor()
    it.strike(pid, signal.SIGSTOP)
    try:
        for at, task in it.tasks.items():
            it.shared.until(at, task, lambda task: task["requeue_reason"] is not None or task["status"] in ENDED)
        time.sleep(it.random.uniform(0, DETACH))  # the fault's own length
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def poison_rate(it: Round) -> None:
    space = it.choose_bad()["search_space"]
    rate = it.random.choice((1e6, 1e29))
    it.begin()
    it.join(search_space={**space, "learning_rate": [rate]}, early_exit=_WATCHFUL)


def poison_rows(it: Round) -> None:
    """Nothing of them is left to learn once they are cut."""
    it.choose_bad()
    rows = [{"prompt": "long " * 60 + str(number), "completion": " never seen"} for number in range(40)]
    it.begin()
    it.join(dataset=it.upload(rows), training={"epochs": 1, "max_seq_len": 16})


def out_of_memory(it: Round) -> None:
    """The executor is refused memory while a tenant's task of long rows is there: it fails, or recomputes activations.

    An executor keeps what such rows ever took, and so does one that measures them: they are measured by one that ends then."""
    it.choose_bad()
    assert it.bad is not None
    words = " ".join(turn["content"] for row in gsm8k(60) for turn in row["messages"]).split()
    rows = [{"prompt": str(number), "completion": " " + " ".join(words[number : number + _LONGEST])} for number in range(8)]
    long = {
        "dataset": {**it.upload(rows), "max_validation_rows": 1},
        "search_space": {"method": "grid", "learning_rate": [1e-3], "rank": [8], "batch_size": [1]},
        "training": {"epochs": 1, "max_steps": 1, "max_seq_len": _LONGEST},
    }
    it.shared.ended(it.bad, it.shared.submit(it.bad, isolation="dedicated", **long))
    it.shared.restart_worker()
    it.begin()
    pid = it.shared.executor()
    it.submit(**long)
    log = it.shared.motet.log("worker")
    it.shared.until_prepared(it.tasks[it.bad])
    with ExitStack() as stack:
        with stopped([pid]):
            told = log.stat().st_size
            stack.enter_context(it.refused(pid, it.random.choice(_HEADROOM)))
        it.shared.together(it.healthy)
        it.shared.ended(it.bad, it.tasks[it.bad])
    assert b"out of memory in a pass" in log.read_bytes()[told:]


def poison_process(it: Round) -> None:
    """A task that ends every executor that takes it up, before it gets anywhere: until it is told that it runs alone."""
    it.choose_bad()
    it.begin()
    it.join()
    assert it.bad is not None
    task, seen = it.tasks[it.bad], 0
    deadline = time.monotonic() + 200
    while not it.shared.told_to_run_alone(it.bad, task):
        assert time.monotonic() < deadline, "it is not left alone"
        given = it.shared.given(task)
        if len(given) > seen:
            seen = len(given)
            it.strike(given[-1], signal.SIGKILL)
        else:
            time.sleep(0.05)  # a line of a log, of which nothing else tells
    assert it.shared.task(it.bad, task)["placement"]["beside"] == 0
    assert it.shared.tenants[it.bad].http.post(f"/v1/tasks/{task}/cancel").status_code == 200


FAULTS: Mapping[str, Callable[[Round], None]] = {
    fault.__name__: fault
    for fault in (kill_executor, kill_daemon, stop_executor, poison_rate, poison_rows, out_of_memory, poison_process)
}
