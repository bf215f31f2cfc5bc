"""What a user of the `openai` SDK does, from upload to the result files, each answer strictly validated by the SDK itself.

Run as a program against BASE_URL and KEY with one version of the SDK on its path; ends with that version on its last line.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai import OpenAI

ENDED = ("succeeded", "failed", "cancelled")
ROWS = b"".join(json.dumps({"prompt": f"{n} + 1?", "completion": str(n + 1)}).encode() + b"\n" for n in range(20))
SPACE = {"learning_rate": [1e-4, 1e-3], "batch_size": [4]}


def refused(kind: type[openai.APIStatusError], code: str, act: Callable[[], object]) -> openai.APIStatusError:
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.code == code, caught.value.message
    return caught.value


def files(client: OpenAI) -> str:
    file = client.files.create(file=("train.jsonl", ROWS), purpose="fine-tune")
    assert file.id.startswith("file-")
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(ROWS), "train.jsonl", "fine-tune", "processed")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == ROWS
    extra = {"expires_after": {"anchor": "created_at", "seconds": 3600}}
    brief = client.files.create(file=("brief.jsonl", ROWS), purpose="fine-tune", extra_body=extra)
    assert brief.expires_at == brief.created_at + 3600
    assert [f.id for f in client.files.list(limit=1)] == [brief.id, file.id]
    assert [f.id for f in client.files.list(order="asc", purpose="fine-tune")] == [file.id, brief.id]
    assert client.files.delete(brief.id).deleted
    refused(openai.NotFoundError, "not_found", lambda: client.files.retrieve(brief.id))
    wrong = refused(openai.BadRequestError, "invalid_purpose", lambda: client.files.create(file=ROWS, purpose="vision"))
    assert wrong.param == "purpose"
    refused(openai.BadRequestError, "file_invalid", lambda: client.files.create(file=b"{}\n", purpose="fine-tune"))
    return file.id


def uploads(client: OpenAI, file_id: str) -> None:
    said = {"filename": "parts.jsonl", "bytes": len(ROWS), "mime_type": "text/jsonl", "purpose": "fine-tune"}
    digest = hashlib.md5(ROWS, usedforsecurity=False).hexdigest()
    upload = client.uploads.upload_file_chunked(file=ROWS, part_size=300, md5=digest, **said)
    assert (upload.status, upload.bytes, upload.expires_at) == ("completed", len(ROWS), upload.created_at + 3600)
    assert (upload.file.filename, upload.file.bytes) == ("parts.jsonl", len(ROWS))
    assert client.files.content(upload.file.id).content == ROWS
    assert client.files.delete(upload.file.id).deleted
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "disk.jsonl")
        path.write_bytes(ROWS)
        upload = client.uploads.upload_file_chunked(file=path, mime_type="text/jsonl", purpose="fine-tune")
    assert client.files.delete(upload.file.id).deleted
    upload = client.uploads.create(**said)
    last, first = (client.uploads.parts.create(upload.id, data=data) for data in (ROWS[100:], ROWS[:100]))
    assert last.upload_id == first.upload_id == upload.id
    ids = [last.id, first.id]
    refused(openai.BadRequestError, "file_invalid", lambda: client.uploads.complete(upload.id, part_ids=ids))
    assert client.uploads.cancel(upload.id).status == "cancelled"
    refused(openai.BadRequestError, "upload_ended", lambda: client.uploads.complete(upload.id, part_ids=ids))
    assert [file.id for file in client.files.list()] == [file_id]


def job(client: OpenAI, file_id: str):
    jobs = client.fine_tuning.jobs
    made = jobs.create(
        model="small",
        training_file=file_id,
        suffix="mine",
        metadata={"team": "blue"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        extra_body={"search_space": SPACE},
    )
    assert (made.status, made.model, made.training_file, made.seed) == ("validating_files", "small", file_id, 0)
    assert made.id.startswith("ftjob-")
    assert made.hyperparameters.n_epochs == 2
    assert made.hyperparameters.batch_size == 4
    assert made.hyperparameters.learning_rate_multiplier == "auto"  # it is searched for
    assert made.method.type == "supervised"
    assert made.metadata == {"team": "blue"}
    while (now := jobs.retrieve(made.id)).status not in ENDED:
        assert now.fine_tuned_model is None
        assert now.result_files == []
        time.sleep(0.05)
    assert now.status == "succeeded"
    assert now.hyperparameters.learning_rate_multiplier == 1.0  # the winner's, of 1e-4
    assert now.fine_tuned_model.startswith("ft:small:mine:")
    assert now.finished_at >= now.created_at
    assert now.trained_tokens == 1000
    return now


def told(client: OpenAI, job) -> None:
    jobs = client.fine_tuning.jobs
    events = list(jobs.list_events(job.id, limit=3))  # goes through all pages
    assert len({event.id for event in events}) == len(events) > 6
    assert events[0].message == "The job has succeeded"
    assert events[-1].message.startswith("The job was created")
    assert any(event.type == "metrics" for event in events)
    (checkpoint,) = jobs.checkpoints.list(job.id)
    assert (checkpoint.fine_tuned_model_checkpoint, checkpoint.step_number) == (job.fine_tuned_model, 20)
    assert checkpoint.metrics.valid_loss == 1.25
    assert [one.id for one in jobs.list(limit=1)] == [job.id]
    assert [one.id for one in jobs.list(extra_query={"metadata": {"team": "blue"}})] == [job.id]
    assert not list(jobs.list(extra_query={"metadata": {"team": "red"}}))
    assert not list(jobs.list(extra_query={"metadata": "null"}))
    refused(openai.BadRequestError, "task_ended", lambda: jobs.cancel(job.id))  # not a 409, which the SDK would retry


def results(client: OpenAI, job) -> None:
    metrics, rows, adapter = job.result_files
    assert client.files.retrieve(metrics).purpose == "fine-tune-results"
    table = client.files.content(metrics).text.split()
    assert table[0] == "job,step,train_loss,valid_loss,train_accuracy,valid_mean_token_accuracy"
    assert table[1:4] == ["0,1,1.99,,0.25,", "0,2,1.98,1.5,0.5,0.625", "1,1,1.99,,,"], "nothing of what was not sent"
    configurations = [json.loads(line) for line in client.files.content(rows).text.splitlines()]
    assert [one["status"] for one in configurations] == ["completed", "exited"]
    with tarfile.open(fileobj=io.BytesIO(client.files.content(adapter).content)) as archive:
        assert any(name.endswith("/adapter_model.safetensors") for name in archive.getnames())
    names = [model.id for model in client.models.list()]
    assert {"small", "org/small", job.fine_tuned_model} <= set(names)
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
    assert client.models.retrieve("org/small").id == "org/small"


def permissions(client: OpenAI, job) -> None:
    held = client.fine_tuning.checkpoints.permissions
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    if hasattr(held, "list"):  # older versions call it `retrieve`, and so do newer ones
        assert list(held.list(job.fine_tuned_model)) == list(held.list(checkpoint.id)) == []
    assert held.retrieve(job.fine_tuned_model, limit=3).data == []
    refused(openai.BadRequestError, "not_shareable", lambda: list(held.create(job.fine_tuned_model, project_ids=["p"])))
    gone = {"permission_id": "cp_1", "fine_tuned_model_checkpoint": job.fine_tuned_model}
    refused(openai.BadRequestError, "not_shareable", lambda: held.delete(**gone))
    refused(openai.NotFoundError, "not_found", lambda: held.retrieve("ft:small:mine:adapter_0"))


def goes_on(client: OpenAI, job, file_id: str) -> None:
    made = client.fine_tuning.jobs.create(model=job.fine_tuned_model, training_file=file_id)
    assert made.model == job.fine_tuned_model
    assert client.fine_tuning.jobs.cancel(made.id).model == job.fine_tuned_model


def mistakes(client: OpenAI, file_id: str) -> None:
    jobs = client.fine_tuning.jobs
    wrong = refused(openai.BadRequestError, "task_refused", lambda: jobs.create(model="smal", training_file=file_id))
    assert wrong.param == "model"
    assert "did you mean 'small'" in wrong.message
    wrong = refused(openai.BadRequestError, "task_refused", lambda: jobs.create(model="small", training_file="file-0"))
    assert wrong.param == "training_file"
    refused(openai.NotFoundError, "not_found", lambda: jobs.retrieve("ftjob-0"))
    stranger = client.with_options(api_key="mk_nobody")
    refused(openai.AuthenticationError, "key_refused", lambda: stranger.models.list())
    made = jobs.create(model="small", training_file=file_id, hyperparameters={"learning_rate_multiplier": 3})
    assert made.hyperparameters.learning_rate_multiplier == 3
    assert jobs.cancel(made.id).status == "cancelled"
    assert jobs.retrieve(made.id).status == "cancelled"


def main() -> None:
    client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["KEY"], _strict_response_validation=True, max_retries=0)
    file_id = files(client)
    uploads(client, file_id)
    ended = job(client, file_id)
    told(client, ended)
    results(client, ended)
    permissions(client, ended)
    goes_on(client, ended, file_id)
    mistakes(client, file_id)
    sys.stdout.write(openai.__version__ + "\n")


if __name__ == "__main__":
    main()
