"""When tasks of one executor are checkpointed: together, so that its devices stop once for all of them."""

import threading
from types import SimpleNamespace

import pytest

from contract.messages.placement_messages import CheckpointRef
from worker.data.node_cache import NodeCache
from worker.executor import checkpoint_policy
from worker.executor.checkpoint_policy import CheckpointPolicy

SECONDS = 30.0
RANKS, RANK_BYTES = 8, 100


class Uploads:
    """What an uploader was given: tasks whose checkpoints it has stored no sooner than the test says."""

    adapters_left = copied_bytes = 0

    def __init__(self):
        self.given, self.jobs = [], []

    def keep_checkpoint(self, task, snapshots, then):
        indexes = [snapshot.index for snapshot in snapshots]
        held = sum(task.runs[index].job.config.rank * RANK_BYTES for index in indexes)
        made = {index: CheckpointRef(step=task.runs[index].step, sha256="a" * 64, bytes=1) for index in indexes}
        self.given.append(task.key)
        self.jobs.append(indexes)
        self.copied_bytes += held

        def stored():
            self.copied_bytes -= held
            then(made)

        task.stored = stored


class Store:
    """Host copies that take so many seconds each."""

    def __init__(self, clock):
        self.clock, self.seconds, self.slow, self.lost = clock, 0.0, {}, {}

    def tensors(self, keys):
        found = {key: {} for key in keys}
        self.clock[0] += sum(self.slow.get(key[0], self.seconds) for key in found)
        return found


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(checkpoint_policy, "boot_now", lambda: now[0])
    return now


@pytest.fixture
def uploads():
    return Uploads()


@pytest.fixture
def policy(uploads, tmp_path):
    return CheckpointPolicy(uploads, NodeCache(tmp_path), SECONDS)


def job(key, index):
    run = SimpleNamespace(key=(key, index), index=index, unfinished=True, checkpoint=None, step=1)
    run.progress = SimpleNamespace(lowest=())
    run.record, run.job = SimpleNamespace(unsaved=True), SimpleNamespace(config=SimpleNamespace(rank=RANKS))
    run.apply = lambda change: setattr(run, "checkpoint", change.ref)
    return run


def task(policy, key, jobs=1, fitting=100):
    """fitting: copies of so many jobs fit into main memory."""
    runs = [job(key, index) for index in range(jobs)]
    one = SimpleNamespace(key=key, runs=runs, leaving=False, checkpointing=False, placement=SimpleNamespace(tenant_id="t"))
    one.record = lambda event: None
    policy.expect(one, RANK_BYTES, fitting * RANKS * RANK_BYTES)
    return one


def test_tasks_that_came_one_after_another_are_checkpointed_together(policy, uploads, clock):
    tasks, store = [], Store(clock)
    for number in range(4):
        tasks.append(task(policy, number))
        clock[0] += 4
    clock[0] = 1000.0 + SECONDS - 0.1
    assert not policy.awaited(tasks)
    policy.take(tasks, store)
    assert uploads.given == []
    clock[0] += 0.1
    assert policy.awaited(tasks)
    policy.take(tasks, store)
    assert uploads.given == [0, 1, 2, 3]
    for one in tasks:
        one.stored()
    clock[0] += SECONDS - 0.1
    assert not policy.awaited(tasks)
    clock[0] += 0.1
    policy.take(tasks, store)
    assert uploads.given == [0, 1, 2, 3] * 2


def test_a_task_that_came_much_later_is_left_until_the_next_time(policy, uploads, clock):
    first, store = task(policy, 0), Store(clock)
    clock[0] += 0.6 * SECONDS
    second = task(policy, 1)
    clock[0] += 0.4 * SECONDS
    policy.take([first, second], store)
    assert uploads.given == [0]
    first.stored()
    clock[0] += 0.6 * SECONDS  # the second is due, the first in 0.4
    policy.take([first, second], store)
    assert uploads.given == [0, 1, 0]


def test_a_task_that_is_leaving_takes_no_others_along(policy, uploads, clock):
    tasks = [task(policy, number) for number in range(2)]
    clock[0] += 0.8 * SECONDS
    tasks[1].leaving = True
    policy.take(tasks, Store(clock))
    assert uploads.given == [1]


def test_a_task_whose_checkpoint_is_on_its_way_is_not_taken_again(policy, uploads, clock):
    tasks, store = [task(policy, number) for number in range(2)], Store(clock)
    clock[0] += SECONDS
    policy.take(tasks, store)
    tasks[1].stored()
    clock[0] += SECONDS
    policy.take(tasks, store, now=True)
    assert uploads.given == [0, 1, 1]
    assert not policy.awaited(tasks)  # the other one is due, but cannot be taken


def test_copies_of_all_tasks_together_take_a_fiftieth_of_the_time(policy, uploads, clock):
    tasks, store = [task(policy, number) for number in range(8)], Store(clock)
    store.seconds = 0.25
    clock[0] += SECONDS
    policy.take(tasks, store)
    for one in tasks:
        one.stored()
    clock[0] += 50 * 8 * 0.25 - 0.1
    assert not policy.awaited(tasks)
    clock[0] += 0.2
    assert policy.awaited(tasks)


def test_a_task_whose_copies_take_long_puts_off_only_its_own(policy, uploads, clock):
    tasks, store = [task(policy, number) for number in range(4)], Store(clock)
    store.seconds, store.slow = 0.01, {2: 20.0}
    clock[0] += SECONDS
    policy.take(tasks, store)
    for one in tasks:
        one.stored()
    clock[0] += SECONDS
    policy.take(tasks, store)
    assert uploads.given == [0, 1, 2, 3, 0, 1, 3]


def test_a_task_with_nothing_new_stops_nobody(policy, uploads, clock):
    tasks, store = [task(policy, number) for number in range(2)], Store(clock)
    (idle,) = tasks[0].runs
    idle.record.unsaved = False
    tasks[1].checkpoint_due += 1
    clock[0] += SECONDS
    assert not policy.awaited(tasks)
    policy.take(tasks, store)
    assert uploads.given == []
    idle.record.unsaved = True  # it trains on, and is due at once
    assert policy.awaited(tasks)
    policy.take(tasks, store)
    assert uploads.given == [0, 1]


def trained(one):
    for run in one.runs:
        run.step, run.record.unsaved = run.step + 1, True


def test_jobs_of_which_memory_holds_no_copies_at_once_are_taken_in_turn(policy, uploads, clock):
    one, store = task(policy, 0, jobs=6, fitting=2), Store(clock)
    clock[0] += SECONDS
    for _ in range(5):
        policy.take([one], store)
        one.stored()
        trained(one)
        clock[0] += SECONDS / 3 - 0.1
        assert not policy.awaited([one]), "each job has its turn within the time"
        clock[0] += 0.2
        assert policy.awaited([one])
    assert uploads.jobs == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]


def test_weights_at_the_lowest_losses_take_their_part_of_main_memory(policy, uploads, clock):
    one, store = task(policy, 0, jobs=5, fitting=4), Store(clock)
    one.leaving = True
    for run in one.runs:
        run.progress.lowest = ("a", "b", "c")  # as large as weights and moments together
    for _ in range(3):
        policy.take([one], store)
        for index in uploads.jobs[-1]:
            one.runs[index].record.unsaved = False
        one.stored()
    assert uploads.jobs == [[0, 1], [2, 3], [4]]


def test_who_does_not_fit_is_next_and_stops_nobody_meanwhile(policy, uploads, clock):
    tasks, store = [task(policy, number, fitting=2) for number in range(3)], Store(clock)
    large = task(policy, 3, fitting=2)
    large.runs[0].job.config.rank = 10 * RANKS
    clock[0] += SECONDS
    policy.take([*tasks, large], store)
    assert uploads.given == [0, 1]
    trained(tasks[0])
    assert not policy.awaited([*tasks, large])
    tasks[0].stored()
    assert policy.awaited([*tasks, large])
    policy.take([*tasks, large], store)
    assert uploads.given == [0, 1, 2]
    tasks[1].stored()
    clock[0] += 2 * SECONDS
    trained(tasks[0])
    policy.take([*tasks, large], store)
    assert uploads.given == [0, 1, 2], "the large one was due before, and is larger than what is left"
    tasks[2].stored()
    policy.take([*tasks, large], store)
    assert uploads.given == [0, 1, 2, 3], "alone, since it never fits"


def test_all_jobs_of_a_task_that_leaves_are_stored_one_part_after_another(policy, uploads, clock):
    one, store = task(policy, 0, jobs=5, fitting=2), Store(clock)
    one.leaving = True
    for _ in range(3):
        policy.take([one], store)
        for index in uploads.jobs[-1]:
            one.runs[index].record.unsaved = False
        one.stored()
    policy.take([one], store)
    assert uploads.jobs == [[0, 1], [2, 3], [4]]


def test_the_file_of_a_job_that_has_ended_is_removed_in_the_background(policy, tmp_path, clock):
    """While removals stand still, the loop goes on; they are done when it ends."""
    one, go_on = task(policy, 0), threading.Event()
    objects = NodeCache(tmp_path).objects("t")
    kept = objects.keep(lambda path: path.write_bytes(b"state"))
    one.runs[0].checkpoint = SimpleNamespace(sha256=kept.sha256)
    policy._removals.submit(lambda: go_on.wait(60))
    policy.forget(one, one.runs[0])
    assert kept.path.exists()
    policy.drain(clock[0])  # a deadline that has come
    assert kept.path.exists()
    threading.Timer(0.2, go_on.set).start()
    policy.drain(clock[0] + 60)
    assert not kept.path.exists()


def test_no_folder_is_made_to_remove_a_file_that_is_not_here(policy, tmp_path, clock):
    """A disk that is full would not take one, and the loop would end for that."""
    one = task(policy, 0)
    one.runs[0].checkpoint = SimpleNamespace(sha256="a" * 64)
    policy.forget(one, one.runs[0])
    policy.drain(clock[0] + 60)
    assert not list(tmp_path.iterdir())
