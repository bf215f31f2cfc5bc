"""A disk does not give back a job's weights at its lowest losses: its task goes on from its checkpoints, no other leaves."""

import errno
import os
from dataclasses import replace

import pytest

from contract.messages.report_messages import AdapterKept
from tests.worker.corpus import rows
from tests.worker.inside import Inside, resumed
from worker.adapters import job_checkpoint
from worker.adapters.arena_adapters import ArenaAdapters
from worker.pipe_messages import Stop
from worker.replicas.ranks.rank_group import LoadedBase

JOB = {"learning_rate": [3e-3, 1e-3], "rank": [8], "batch_size": [4]}
SPEC = {"early_exit": {"policy": "none", "eval_every": 2}, "training": {"max_steps": 8}}
PATIENCE = 60.0


@pytest.mark.parametrize("where", ["at a checkpoint", "at its end"])
def test_a_task_whose_weights_cannot_be_read_back_leaves_alone(fleet, placing, tmp_path, monkeypatch, where):
    known, note = LoadedBase.capacities, ArenaAdapters.note_lowest
    monkeypatch.setattr(LoadedBase, "capacities", lambda *asked: tuple(replace(has, lowest_bytes=0) for has in known(*asked)))
    bad, good = placing(JOB, **SPEC), placing(JOB, rows(30, seed=3), **SPEC)

    def ruined(self, key, place, most):
        note(self, key, place, most)
        lowest = self._lowest
        with lowest._changed:
            assert lowest._changed.wait_for(lambda: not lowest._waiting, PATIENCE)
        if key == (bad.placement_id, 0):
            os.ftruncate(self._held[key].copies[place].let_go.args[0].at.io.fileno(), 0)

    monkeypatch.setattr(ArenaAdapters, "note_lowest", ruined)
    inside = Inside(fleet, tmp_path, worker_checkpoint_seconds=0.01 if where == "at a checkpoint" else 3600)
    lost, kept = inside.run(bad, good, together=True)
    assert [event.kind for event in kept.ended.values()] == ["job_completed"] * 2
    assert len(kept.of(AdapterKept)) == 2
    ends = {ended.placement_id: (ended.lost, ended.detail) for ended in inside.ended}
    assert ends[good.placement_id] == (False, "done")
    was_lost, detail = ends[bad.placement_id]
    assert was_lost
    assert detail.startswith(f"job 0 of placement {bad.placement_id}: a file of weights in MOTET_WORKER_DIR cannot be read")
    assert 0 not in lost.ended
    monkeypatch.setattr(ArenaAdapters, "note_lowest", note)
    (again,) = Inside(fleet, tmp_path / "other").run(resumed(lost, "again"))
    assert again.ended[0].kind == "job_completed"


def test_a_task_whose_checkpoint_the_disk_does_not_give_back_leaves_alone(fleet, placing, tmp_path, monkeypatch):
    begun, real = placing(JOB, **SPEC), job_checkpoint.read_metadata
    executors = []
    fleet.on_report = lambda reported, report: reported.checkpoints and executors[0].handle_command(Stop(seconds=0))
    (before,) = Inside(fleet, tmp_path / "before", worker_checkpoint_seconds=0.01).run(
        begun, prepare=executors.append, paced=True
    )
    fleet.on_report = lambda reported, report: None
    assert before.checkpoints

    def unreadable(path):
        if path.name.startswith("resumed-bad-"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(job_checkpoint, "read_metadata", unreadable)
    inside = Inside(fleet, tmp_path / "node")
    _, kept = inside.run(resumed(before, "bad"), placing(JOB, rows(30, seed=3), **SPEC))
    assert [event.kind for event in kept.ended.values()] == ["job_completed"] * 2
    (lost,) = [ended for ended in inside.ended if ended.lost]
    assert (lost.placement_id, lost.by_node) == ("bad", True)
    assert lost.detail.endswith("MOTET_WORKER_DIR cannot be read: [Errno 5] Input/output error")
