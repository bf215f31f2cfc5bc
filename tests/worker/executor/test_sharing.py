"""Several tenants on one executor: who joins disturbs nobody, and whatever one of them does changes no bit of another's."""

import logging
import re
import threading

from contract import wire
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer

CALM = {"policy": "none", "eval_every": 4}
JOB = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4]}
LONG = [{"prompt": f"{n}", "completion": f" sheep {n}" * 90} for n in range(12)]


def of_tenant(placement: wire.Placement, tenant: str) -> wire.Placement:
    return placement.model_copy(update={"tenant_id": tenant})


def ends(reported) -> tuple[dict, dict, dict]:
    """What a task leaves: its curves, its adapters' bytes, and how its jobs ended."""
    files = {job: [(file.path, file.sha256) for file in manifest.files] for job, manifest in reported.manifests.items()}
    return dict(reported.curves), files, {job: event.kind for job, event in reported.ended.items()}


def test_a_joiner_is_prepared_beside_the_loop_on_a_trainer_of_its_own(fleet, placing, tmp_path, monkeypatch):
    """The joiner's rows are of another length, so a profile is measured: while the loop steps, and with another trainer."""
    spec = {"early_exit": CALM, "training": {"max_steps": 40, "max_seq_len": 200}}
    first, joiner = of_tenant(placing(JOB, **spec), "a"), of_tenant(placing(JOB, LONG, **spec), "b")
    (alone,) = Inside(fleet, tmp_path / "alone").run(first.model_copy(update={"placement_id": "p9", "token": "token-p9"}))
    real, load, guard = Trainer._pass, Backbone.load, threading.Lock()
    inside: dict[Trainer, list[str]] = {}
    shared, loaded, met = [], [], threading.Event()

    def watched(self, segments, recompute):
        thread = threading.current_thread().name
        with guard:
            inside.setdefault(self, []).append(thread)
            here = [name for names in inside.values() for name in names]
            if len(set(here)) > 1:
                met.set()
            if len(set(inside[self])) > 1:
                shared.append(list(inside[self]))
        try:
            if thread == "preparations" and loaded and any(reported.step[0] for reported in fleet.reported.values()):
                met.wait(30)  # for a step of the loop
            return real(self, segments, recompute)
        finally:
            with guard:
                inside[self].remove(thread)

    monkeypatch.setattr(Trainer, "_pass", watched)
    monkeypatch.setattr(Backbone, "load", lambda *args: loaded.append(args) or load(*args))
    fleet.reported.clear()
    kept, joined = Inside(fleet, tmp_path / "both").run(first, joining=[joiner])
    assert met.is_set(), "the loop stepped while the joiner was measured"
    assert not shared, "no trainer was used by two threads at once"
    assert len(loaded) == 1, "the base was not loaded again"
    assert ends(kept) == ends(alone)
    assert len(joined.ended) == 1


def test_what_a_joiner_takes_is_in_the_log(fleet, placing, tmp_path, caplog):
    caplog.set_level(logging.INFO, "worker.executor")
    spec = {"early_exit": CALM, "training": {"max_steps": 20}}
    first, joiner = placing(JOB, **spec), placing(JOB, rows(30, seed=3), **spec)
    Inside(fleet, tmp_path).run(first, joining=[joiner])
    said = [record.getMessage() for record in caplog.records]
    parts = next(line for line in said if line.startswith(f"placement {joiner.placement_id} is prepared"))
    assert re.search(r"[\d.]+ s \(base [\d.]+, rows [\d.]+, checkpoints [\d.]+, memory profile [\d.]+, first weights", parts)
    assert any(re.match(rf"placement {joiner.placement_id} takes its first step [\d.]+ s after it came", line) for line in said)
