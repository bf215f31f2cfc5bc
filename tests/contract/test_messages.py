"""Messages: they survive the wire, a newer neighbour's fields do not hurt, a loss that is no number travels as null."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from contract.compatibility.lenient_documents import unknown_fields
from contract.messages.adapter_manifest import AdapterManifest
from contract.messages.node_messages import (
    Device,
    Heartbeat,
    HeartbeatAnswer,
    LeaseGrant,
    NodeRegistration,
    NodeWelcome,
    PlacementsLost,
    Pulse,
)
from contract.messages.placement_messages import (
    BaseFile,
    BaseModelRef,
    CheckpointRef,
    DesiredState,
    FileRef,
    JobAssignment,
    Placement,
)
from contract.messages.report_messages import Points, Report, ReportAck, ReportEvent
from contract.messages.upload_messages import UploadGrant, UploadRequest
from contract.states import ExitReason, JobStatus, RequeueReason
from contract.task_spec import TaskSpec

SHA = "0123456789abcdef" * 4
CONFIG = {"learning_rate": 1e-4, "rank": 8, "alpha": 16.0, "batch_size": 4, "seed": 0}
SPEC = {"base_model": "m", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-4]}}
FILES = [{"path": name, "sha256": SHA, "bytes": 1} for name in ("adapter_config.json", "adapter_model.safetensors")]
LINEAGE = {
    "task_id": "t",
    "job_id": "j",
    "base_model": "m",
    "base_revision": SHA,
    "dataset_sha256": SHA,
    "config": CONFIG,
}
MANIFEST = {"files": FILES, "step": 3, "val_loss": 1.5, "lineage": LINEAGE}

count = st.integers(0, 2**31 - 1)
losses = st.floats(allow_nan=True, allow_infinity=True)
loss = st.none() | losses
checkpoints = st.fixed_dictionaries({"step": count, "sha256": st.just(SHA), "bytes": count})


def event(kind: str, **members: st.SearchStrategy) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), **members})


@st.composite
def points(draw) -> dict[str, Any]:
    steps = sorted(draw(st.sets(count, min_size=1, max_size=256)))
    values = draw(st.lists(losses, min_size=len(steps), max_size=len(steps)))
    return {"kind": "points", "job": draw(count), "series": "val_loss", "steps": steps, "values": values}


by_job = st.dictionaries(count, count, max_size=3)
evidence = count | st.text(max_size=8) | st.lists(loss, max_size=3)
best = {"best_step": st.none() | count, "best_val_loss": loss}
seconds = st.floats(0, 1e6)
EVENTS = {
    "attached": event(
        "attached",
        train_rows=st.integers(1, 2**31 - 1),
        validation_rows=count,
        truncated_rows=count,
        skipped_rows=count,
        overlap_rows=st.none() | count,
        total_steps=by_job,
        warmup_steps=by_job,
    ),
    "activations_chosen": event("activations_chosen", recompute=st.booleans(), reason=st.text(max_size=8)),
    "base_evaluated": event("base_evaluated", val_loss=loss),
    "texts_evaluated": event("texts_evaluated", job=st.none() | count, prompts=count, scores=st.just({"rouge_l": 0.5})),
    "job_proposed": event(
        "job_proposed",
        job=count,
        config=st.just({"learning_rate": 1e-3, "rank": 8, "alpha": 16.0, "batch_size": 4, "seed": 0}),
        total_steps=st.integers(2, 2**31 - 1),
        warmup_steps=st.just(1),
    ),
    "job_moved": event(
        "job_moved", job=count, status=st.sampled_from(["warmup", "parked", "training"]), step=count, warmup_val_loss=loss
    ),
    "points": points(),
    "throughput": event(
        "throughput", steps=count, tokens=count, seconds=st.floats(0, 1e6), micro_batches=count, forwards=count, rows=count
    ),
    "checkpointed": event("checkpointed", jobs=st.dictionaries(count, checkpoints, max_size=3)),
    "adapter_kept": event("adapter_kept", job=count, manifest=st.just(MANIFEST)),
    "job_completed": event("job_completed", job=count, step=count, **best),
    "job_exited": event(
        "job_exited",
        job=count,
        step=count,
        reason=st.sampled_from(ExitReason),
        evidence=st.dictionaries(st.text(max_size=8), evidence, max_size=3),
        **best,
    ),
    "job_failed": event("job_failed", job=count, step=count, error=st.text(max_size=50)),
    "placement_failed": event("placement_failed", error=st.text(max_size=50)),
    "detached": event("detached"),
}
reports = st.fixed_dictionaries(
    {"fence": count, "seq": st.integers(1, 2**31), "events": st.lists(st.one_of(*EVENTS.values()), min_size=1, max_size=5)}
)


def test_every_kind_of_event_is_tried():
    kinds = {model.model_fields["kind"].default for model in ReportEvent.__args__[0].__args__}
    assert kinds == set(EVENTS)


@given(reports)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
def test_a_report_survives_the_wire(said):
    sent = Report.model_validate(said)
    text = sent.model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert Report.model_validate_json(text) == sent


OTHERS = [
    NodeRegistration(name="node-1", boot_id="b" * 8, devices=[Device(index=0, type="cpu", memory_bytes=2**30)]),
    NodeWelcome(node_id="n", credential="c", stream="s", heartbeat_seconds=10, lease_seconds=90),
    Heartbeat(boot_id="b" * 8, pulses=[Pulse(placement_id="p", fence=1, phase="training", progress_age=0.5)]),
    HeartbeatAnswer(leases=[LeaseGrant(placement_id="p", fence=1, seconds=90, token="t")], desired_version=3),
    PlacementsLost(reason=RequeueReason.EXECUTOR_LOST, fences={"p": 1}),
    UploadRequest(fence=1, sha256=SHA, bytes=0),
    UploadGrant(exists=True),
    ReportAck(seq=1),
    DesiredState(
        version=1,
        placements=[
            Placement(
                placement_id="p",
                fence=1,
                token="t",
                lease_seconds=90,
                task_id="t",
                device_indexes=[0],
                base=BaseModelRef(name="m", source="/m", revision=SHA),
                train_file=FileRef(file_id="f", sha256=SHA, rows=2),
                validation_file=None,
                spec=TaskSpec.model_validate(SPEC),
                jobs=[
                    JobAssignment(
                        job_id="j",
                        index=0,
                        config=CONFIG,
                        status=JobStatus.PARKED,
                        warmup_val_loss=1.25,
                        checkpoint=CheckpointRef(step=3, sha256=SHA, bytes=9),
                    )
                ],
            )
        ],
    ),
]


@pytest.mark.parametrize("message", OTHERS, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message):
    assert type(message).model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize("message", OTHERS, ids=lambda message: type(message).__name__)
def test_a_field_of_a_newer_neighbour_is_ignored(message):
    newer = json.loads(message.model_dump_json()) | {"of_tomorrow": 1}
    assert type(message).model_validate(newer) == message


def sent_placement() -> dict[str, Any]:
    state = next(message for message in OTHERS if isinstance(message, DesiredState))
    return json.loads(state.model_dump_json())["placements"][0]


def test_a_base_of_the_hub_without_its_pin_is_unreadable():
    """As a service of the version before sends it: the node waits for a newer one instead of failing the task."""
    state = next(message for message in OTHERS if isinstance(message, DesiredState)).model_copy(deep=True)
    said = json.loads(state.model_dump_json())
    said["placements"][0]["base"]["source"] = "hf://org/name"
    with pytest.raises(ValidationError, match="needs its commit and its files"):
        Placement.model_validate(said["placements"][0])


def test_bases_are_shared_by_their_bytes_not_by_where_these_come_from():
    files = (BaseFile(path="model.safetensors", sha256=SHA, bytes=9),)
    named = BaseModelRef(name="m", source="hf://org/name", revision=SHA, commit="a" * 40, files=files)
    fetched = named.model_copy(update={"source": "/cache/m"})
    assert named.identity == fetched.identity == named.model_copy(update={"commit": "b" * 40}).identity
    other = files[0].model_copy(update={"sha256": "f" * 64})
    for change in ({"precision": "nf4"}, {"files": (other,)}, {"revision": "f" * 64}, {"name": "n"}):
        assert named.model_copy(update=change).identity != named.identity
    licensed = named.model_copy(update={"files": (*files, BaseFile(path="LICENSE", sha256=SHA, bytes=9))})
    assert licensed.identity == named.identity, "a licence that comes while tasks train changes nothing for them"
    template = BaseFile(path="additional_chat_templates/tool_use.jinja", sha256=SHA, bytes=9)
    assert named.model_copy(update={"files": (*files, template)}).identity != named.identity
    for path in (
        "../x.jinja",
        "other/x.jinja",
        "additional_chat_templates/../x.jinja",
        "additional_chat_templates/x",
        "a/b/c.jinja",
    ):
        with pytest.raises(ValidationError, match="path"):
            BaseFile(path=path, sha256=SHA, bytes=9)
    folder = BaseModelRef(name="m", source="/m", revision=SHA)
    assert folder.identity != folder.model_copy(update={"source": "/n"}).identity


def test_a_spec_is_sent_without_defaults_and_keeps_the_fields_of_a_newer_version():
    said = sent_placement()
    assert said["spec"] == SPEC
    said["spec"] |= {"of_tomorrow": {"a": 1}, "training": {"epochs": 1, "smoothing": 0.1}}
    said["jobs"][0]["config"]["dora"] = True
    read = Placement.model_validate(said)
    assert unknown_fields(read.spec) == ["of_tomorrow", "training.smoothing"]
    again = json.loads(Placement.model_validate_json(read.model_dump_json()).model_dump_json())
    assert again["spec"] == said["spec"]
    assert again["jobs"][0]["config"] == said["jobs"][0]["config"]


def test_a_manifest_keeps_the_configuration_of_a_newer_version():
    newer = CONFIG | {"schedule": "of_tomorrow", "dora": True}
    said = MANIFEST | {"lineage": LINEAGE | {"config": newer}}
    read = AdapterManifest.model_validate(said)
    assert read.lineage.config.rank == newer["rank"]
    assert read.model_dump(mode="json")["lineage"]["config"] == newer


def test_a_loss_that_is_no_number_is_null():
    sent = Points(job=0, series="train_loss", steps=[1, 2], values=[math.nan, -math.inf])
    assert json.loads(sent.model_dump_json())["values"] == [None, None]


def test_an_unknown_event_is_refused_by_its_kind():
    with pytest.raises(ValidationError, match="job_exploded"):
        TypeAdapter(ReportEvent).validate_python({"kind": "job_exploded"})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([FILES[0]], "misses adapter_model.safetensors"),
        ([*FILES, FILES[0]], "same path"),
        ([*FILES, FILES[0] | {"path": "../evil"}], "should match pattern"),
        ([*FILES, FILES[0] | {"path": "a/b"}], "should match pattern"),
        ([*FILES, FILES[0] | {"sha256": "A" * 64, "path": "x"}], "should match pattern"),
    ],
)
def test_a_manifest_is_a_whole_folder_of_plain_names(files, words):
    with pytest.raises(ValidationError, match=words):
        AdapterManifest.model_validate(MANIFEST | {"files": files})
