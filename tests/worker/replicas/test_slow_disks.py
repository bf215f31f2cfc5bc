"""A rank reads the weights of a job that ends back from its files; it and all others take the steps of other jobs meanwhile."""

from dataclasses import replace

import pytest

from contract.messages.report_messages import AdapterKept
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from tests.worker.replicas import slow_disk_rank
from tests.worker.replicas.test_replica_set import wide
from worker.replicas.ranks.rank_group import LoadedBase

pytestmark = pytest.mark.usefixtures("measured_once")

SPACE = {"learning_rate": [1e-2, 3e-3], "rank": [8], "batch_size": [4]}
STEPS = 3


def test_others_step_while_a_rank_reads_weights_back(fleet, placing, tmp_path, monkeypatch):
    short = placing(SPACE, early_exit={"policy": "none", "eval_every": 2}, training={"max_steps": 8})
    long = placing(SPACE, rows(30, seed=3), early_exit={"policy": "none", "eval_every": 50}, training={"epochs": 30})
    alone = [Inside(fleet, tmp_path / one.placement_id).run(one)[0] for one in (short, long)]
    folder, known = tmp_path / "disk", LoadedBase.capacities
    folder.mkdir()
    monkeypatch.setattr("worker.replicas.ranks.rank_start.RANK_MODULE", slow_disk_rank.MODULE)
    monkeypatch.setenv(slow_disk_rank.VARIABLE, str(folder))
    monkeypatch.setattr(LoadedBase, "capacities", lambda *asked: tuple(replace(has, lowest_bytes=0) for has in known(*asked)))
    executors, until = [], []

    def watch(reported, report):
        if reported.placement.placement_id != "long" or not (folder / slow_disk_rank.ASKED).exists():
            return
        if not until:
            until.append(STEPS + max(run.step for run in executors[0]._attached["long"].runs))
        if max(reported.step.values()) >= until[0]:
            (folder / slow_disk_rank.GO_ON).touch()

    fleet.on_report = watch
    inside = Inside(fleet, tmp_path / "wide")
    found = inside.run(wide(short, "short"), wide(long, "long"), prepare=executors.append, together=True)
    assert until
    assert not (folder / slow_disk_rank.GAVE_UP).exists()
    for reported, expected in zip(found, alone, strict=True):
        assert reported.curves == expected.curves
        files = [{event.job: event.manifest.files for event in one.of(AdapterKept)} for one in (reported, expected)]
        assert files[0] == files[1]
        assert files[0].keys() == {0, 1}
