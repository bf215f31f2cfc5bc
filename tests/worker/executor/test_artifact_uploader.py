"""Uploads beside other executors of the node, which keep objects of the same bytes, and while storage is away for days."""

import gc
import os
import threading
import time
import weakref
from collections import defaultdict
from functools import partial

import pytest

from contract.messages.report_messages import Checkpointed
from tests.worker.executor.test_executor import CALM, SPACE
from tests.worker.inside import Inside
from worker.api_client import PlacementLink, Unreachable
from worker.data.node_cache import NodeCache
from worker.executor.artifact_uploader import ArtifactUploader
from worker.executor.inbox import Inbox
from worker.pipe_messages import Detach, Stop


def test_a_checkpoint_that_another_executor_drops_is_uploaded_all_the_same(fleet, placing, tmp_path, monkeypatch):
    """The same task twice has the same checkpoints; whoever ends or supersedes its own drops the object of these bytes."""
    put, gone = PlacementLink.put, []

    def away(self, grant, path):
        if not gone:
            objects = [one for one in inside.settings.scratch.glob("tenants/*/objects/*") if len(one.name) == 64]
            gone.append([one.unlink() for one in objects])
            raise Unreachable("storage is away")
        put(self, grant, path)

    monkeypatch.setattr(PlacementLink, "put", away)
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    inside = Inside(fleet, tmp_path / "node", worker_checkpoint_seconds=0.05)
    (reported,) = inside.run(placement, paced=True)
    assert gone
    assert reported.of(Checkpointed)
    kept = {ref.sha256 for event in reported.of(Checkpointed) for ref in event.jobs.values()}
    assert kept <= fleet.objects.keys()


@pytest.mark.parametrize("seconds", [3600, 0.05])  # between checkpoints
def test_what_waits_for_storage_for_days_is_uploaded_all_the_same(fleet, placing, tmp_path, monkeypatch, seconds):
    """A sweep of a day later finds the files of an adapter, or a checkpoint, as nobody has touched them since. A thread that
    finds no file ends its process, and all that trains there."""
    put, waited, died = PlacementLink.put, [], []
    inside = Inside(fleet, tmp_path / "node", worker_checkpoint_seconds=seconds)

    def away(self, grant, path):
        if not waited:
            waited.append(path)
            for one in inside.settings.scratch.rglob("*"):
                os.utime(one, (0, 0))
            NodeCache(inside.settings.scratch / "tenants").sweep()
            raise Unreachable("storage is away")
        put(self, grant, path)

    def ended(args):
        died.append(args.exc_value)
        executors[0].handle_command(Stop(seconds=0))

    executors = []
    monkeypatch.setattr(PlacementLink, "put", away)
    monkeypatch.setattr(threading, "excepthook", ended)
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    (reported,) = inside.run(placement, prepare=executors.append, paced=seconds < 1)
    assert died == []
    assert waited[0].name.startswith("checkpoint-" if seconds < 1 else "export-")
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}
    assert set(reported.manifests) == set(reported.ended)
    assert not list(inside.settings.scratch.glob("executors/*/checkpoint-*"))


@pytest.mark.parametrize("leaves", [False, True])
def test_the_loop_stops_for_an_adapter_and_for_a_task_that_leaves_not_for_a_checkpoint_that_is_stored(
    fleet, placing, tmp_path, monkeypatch, leaves
):
    put, patience, executors = Inbox.put, defaultdict(list), []

    def noted(self, callback, patient=False):
        if isinstance(callback, partial):
            patience[callback.func.__name__].append(patient)
        put(self, callback, patient)

    def leave(reported, report):
        if leaves and max(reported.step.values(), default=0) >= 2 and not leaving:
            leaving.append(True)
            executors[0].handle_command(Detach(placement_id=placement.placement_id, keep=True))

    leaving, fleet.on_report = [], leave
    monkeypatch.setattr(Inbox, "put", noted)
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    inside = Inside(fleet, tmp_path, worker_checkpoint_seconds=3600 if leaves else 0.01)
    inside.run(placement, prepare=executors.append, paced=True)
    assert patience["_stored"]
    assert set(patience["_stored"]) == {not leaves}
    assert set(patience["kept"]) == (set() if leaves else {False})


def test_host_copies_of_a_checkpoint_are_given_up_before_it_is_uploaded(fleet, placing, tmp_path, monkeypatch):
    """They are as large as all adapters that train, and storage may be away for long."""
    put, keep, copies, held = PlacementLink.put, ArtifactUploader.keep_checkpoint, [], []

    def keeping(self, task, snapshots, then):
        if not copies:
            copies.extend(weakref.ref(snapshot.tensors) for snapshot in snapshots)
        keep(self, task, snapshots, then)

    def looking(self, grant, path):
        if copies and not held:
            gc.collect()
            held.append([copy() is not None for copy in copies])
        put(self, grant, path)

    monkeypatch.setattr(ArtifactUploader, "keep_checkpoint", keeping)
    monkeypatch.setattr(PlacementLink, "put", looking)
    placement = placing(SPACE | {"learning_rate": [1e-2, 1e-3, 3e-3]}, early_exit=CALM, training={"epochs": 2})
    (reported,) = Inside(fleet, tmp_path, worker_checkpoint_seconds=0.05).run(placement, paced=True)
    assert held == [[False] * 3]
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}


def test_host_copies_of_adapters_are_given_up_while_storage_is_away(fleet, placing, tmp_path, monkeypatch):
    """A search may end many jobs until storage answers again. Each is on disk by then."""
    put, keep, copies, tries, held = PlacementLink.put, ArtifactUploader.keep_adapter, [], [], []
    until = time.monotonic() + 60

    def keeping(self, task, best, then):
        copies.append(weakref.ref(best.weights.read()))
        keep(self, task, best, then)

    def away(self, grant, path):
        if path.name.startswith("export-") and not held:
            gc.collect()
            tries.append(sum(copy() is not None for copy in copies))
            if time.monotonic() < until and (len(copies) < 5 or tries[-1]):
                raise Unreachable("storage is away")
            held.append(tries[-1])
        put(self, grant, path)

    monkeypatch.setattr(ArtifactUploader, "keep_adapter", keeping)
    monkeypatch.setattr(PlacementLink, "put", away)
    monkeypatch.setattr("worker.executor.retry._LONGEST_SECONDS", 0.1)
    space = SPACE | {"learning_rate": [1e-2, 1e-3, 3e-3, 1e-4, 3e-4]}
    (reported,) = Inside(fleet, tmp_path).run(placing(space, early_exit=CALM, training={"epochs": 2}))
    assert (len(copies), held[0]) == (5, 0)
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}
    assert set(reported.manifests) == set(range(5))


def test_jobs_of_whose_copies_memory_holds_one_are_checkpointed_in_turn(fleet, placing, tmp_path, monkeypatch):
    """Main memory for parked adapters bounds these copies too; a task that leaves is stored whole all the same."""
    keep, parts, held = ArtifactUploader.keep_checkpoint, [], []

    def keeping(self, task, snapshots, then):
        parts.append([snapshot.index for snapshot in snapshots])
        held.append(self.copied_bytes)
        keep(self, task, snapshots, then)

    monkeypatch.setattr(ArtifactUploader, "keep_checkpoint", keeping)
    placement = placing(SPACE | {"learning_rate": [1e-2, 1e-3, 3e-3]}, early_exit=CALM, training={"epochs": 8})
    inside = Inside(fleet, tmp_path, worker_checkpoint_seconds=0.05, worker_park_bytes=1)
    (reported,) = inside.run(placement, paced=True)
    assert {len(part) for part in parts} == {1}
    assert set(held) == {0}, "each was written before the next was copied"
    saved = {index for event in reported.of(Checkpointed) for index in event.jobs}
    assert saved == {0, 1, 2}
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}
