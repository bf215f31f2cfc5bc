"""When tasks of one executor are checkpointed: together, so that its devices stop once for all of them."""

import threading
from types import SimpleNamespace

import pytest

from worker.data.node_cache import NodeCache
from worker.executor import checkpoint_policy
from worker.executor.checkpoint_policy import CheckpointPolicy

SECONDS = 30.0


class Uploads:
    """What an uploader was given: tasks whose checkpoints it has stored no sooner than the test says."""

    adapters_left = 0

    def __init__(self):
        self.given = []

    def keep_checkpoint(self, task, snapshots, then):
        self.given.append(task.key)
        task.stored = lambda: then({})


class Store:
    """Host copies that take so many seconds each."""

    def __init__(self, clock):
        self.clock, self.seconds, self.slow = clock, 0.0, {}

    def tensors(self, keys):
        found = {key: {} for key in keys}
        self.clock[0] += sum(self.slow.get(key, self.seconds) for key in found)
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


def task(policy, key):
    run = SimpleNamespace(
        key=key, index=0, progress=None, unfinished=True, checkpoint=None, record=SimpleNamespace(unsaved=True)
    )
    one = SimpleNamespace(key=key, runs=[run], leaving=False, checkpointing=False, placement=SimpleNamespace(tenant_id="t"))
    policy.expect(one)
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
    assert uploads.given == [0, 0, 1]


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
