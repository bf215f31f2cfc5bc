"""Bad company: whatever a neighbour does, a job's curve and adapter are, bit for bit, those beside a healthy neighbour."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contract.messages.placement_messages import BaseModelRef, CheckpointRef, Placement
from contract.messages.report_messages import PlacementFailed
from contract.model_revision import revision_of
from contract.states import ExitReason, JobStatus
from tests.worker.corpus import rows
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from tests.worker.placer import placer
from worker.adapters.job_checkpoint import Tensors, save
from worker.model.arena import AdapterState, Arena
from worker.model.backbone import Backbone
from worker.policy.job_record import JobProgress

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "alto", "warmup_fraction": 1.0, "eval_every": 4, "tau_gap": 10.0}
JOB = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4]}
SPEC = {"early_exit": CALM, "training": {"epochs": 2}}
PAIR = JOB | {"learning_rate": [3e-3, 1e-3]}  # the second is the healthy neighbour, of equal tokens


def same(one, other, job: int = 0) -> bool:
    """Whether the job is the same, to the bit, in both: curves and adapter."""
    series = [key for key in one.curves if key[0] == job]
    files = [{file.path: file.sha256 for file in reported.manifests[job].files} for reported in (one, other)]
    return bool(series) and all(one.curves[key] == other.curves[key] for key in series) and files[0] == files[1]


@pytest.fixture
def healthy(fleet, placing, tmp_path):
    """The job beside a healthy neighbour."""
    (reported,) = Inside(fleet, tmp_path / "healthy").run(placing(PAIR, **SPEC))
    return reported


def test_a_learning_rate_of_a_million(fleet, placing, tmp_path, healthy):
    (mixed,) = Inside(fleet, tmp_path).run(placing(PAIR | {"learning_rate": [3e-3, 1e6]}, **SPEC))
    assert mixed.ended[1].reason is ExitReason.DIVERGING
    assert mixed.ended[1].evidence["pattern"]
    assert same(mixed, healthy)


def test_an_adapter_of_nan(fleet, placing, tmp_path, tiny_base, healthy):
    width = Arena(Backbone.load(Path(tiny_base.source)).targets, 8).layout.width
    path = tmp_path / "nan"
    nan = torch.full((8, width), float("nan"))
    save(path, JobProgress(step=1, ema=1.0), Tensors(AdapterState(nan, nan.clone(), nan.clone())))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    fleet.objects[digest] = path.read_bytes()
    placement = placing(PAIR, **SPEC)
    ref = CheckpointRef(step=1, sha256=digest, bytes=path.stat().st_size)
    ruined = placement.jobs[1].model_copy(update={"status": JobStatus.TRAINING, "promoted": True, "checkpoint": ref})
    (mixed,) = Inside(fleet, tmp_path / "mixed").run(placement.model_copy(update={"jobs": [placement.jobs[0], ruined]}))
    assert mixed.ended[1].reason is ExitReason.DIVERGING
    assert mixed.ended[1].evidence["pattern"] == "loss is not finite"
    assert same(mixed, healthy)


def test_an_update_that_cannot_be_made(fleet, placing, tmp_path, healthy):
    """As of a spec that an older version took, before rates had a bound."""
    placement = placing(PAIR, **SPEC)
    wild = placement.jobs[1].model_copy(update={"config": placement.jobs[1].config.model_copy(update={"learning_rate": 1e39})})
    (mixed,) = Inside(fleet, tmp_path).run(placement.model_copy(update={"jobs": [placement.jobs[0], wild]}))
    assert mixed.ended[1].kind == "job_failed"
    assert "learning_rate is 1e+39: the update is beyond what float32 holds" in mixed.ended[1].error
    assert same(mixed, healthy)


def test_rows_truncated_to_nothing(fleet, placing, tmp_path, healthy):
    hopeless = [{"prompt": "long " * 40 + str(n), "completion": " never seen"} for n in range(8)]
    spec = SPEC | {"training": {"epochs": 2, "max_seq_len": 16}}
    good, bad = Inside(fleet, tmp_path).run(placing(PAIR, **SPEC), placing(JOB, hopeless, **spec))
    (failed,) = bad.of(PlacementFailed)
    assert "8 had nothing to learn within max_seq_len 16" in failed.error
    assert same(good, healthy)


@pytest.fixture(scope="module")
def roomy_base(tiny_base, tmp_path_factory) -> BaseModelRef:
    """The tiny base with room for long rows."""
    source, folder = Path(tiny_base.source), tmp_path_factory.mktemp("bases") / "roomy"
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config = LlamaConfig.from_pretrained(source)
    config.max_position_embeddings = 16384
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return BaseModelRef(name="roomy", source=str(folder), revision=revision_of(folder))


@pytest.mark.parametrize("tokens", [1000, pytest.param(8000, marks=pytest.mark.slow)])
def test_very_long_rows(fleet: Fleet, roomy_base: BaseModelRef, tmp_path: Path, tokens: int):
    """The long rows' own limit is a clear one, and the short rows' job does not notice them."""
    place: Callable[..., Placement] = placer(fleet, roomy_base)
    long = [{"prompt": f"{n}", "completion": " sheep" * tokens} for n in range(4)]
    spec = SPEC | {"training": {"epochs": 1, "max_seq_len": 8192}}
    (solo,) = Inside(fleet, tmp_path / "solo").run(place(JOB, rows(16), **SPEC))
    batch = JOB | {"batch_size": [1]}
    short, other = Inside(fleet, tmp_path / "both").run(place(JOB, rows(16), **SPEC), place(batch, long, **spec))
    assert other.ended[0].kind in ("job_completed", "job_exited")
    assert len(other.curves[0, "train_loss"]) == 3
    assert same(short, solo)

    tight = {"worker_memory_bytes": 64 * 2**20}
    short, other = Inside(fleet, tmp_path / "tight", **tight).run(place(JOB, rows(16), **SPEC), place(batch, long, **spec))
    assert all(event.kind == "job_failed" for event in other.ended.values())
    assert "sequences of up to" in other.ended[0].error
