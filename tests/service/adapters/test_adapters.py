"""Adapters over HTTP: described, downloaded by file and as an archive, and a task's winner once there is one."""

import base64
import hashlib
import io
import os
import tarfile
from datetime import timedelta

import pytest
from sqlalchemy import update

from service.adapters.models import Adapter
from service.background.garbage_collection import sweep
from service.background.retention import Retention
from service.files.models import File
from service.tasks.models import Task
from tests.service.sample_tasks import adapter, chunk, jobs_of

FILES = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": os.urandom(3_000_001), "README.md": b""}


@pytest.fixture
def won(tenant, database, storage):
    """A task that succeeded; the ids of the task and of the winner's adapter."""
    task_id = tenant.task()["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[1]
        made = adapter(session, storage, job, FILES, val_loss=0.75)
        session.execute(update(Task).where(Task.id == task_id).values(status="succeeded", winner_job_id=job.id))
    return task_id, made.id


def unpack(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def test_an_adapter_is_described(tenant, won):
    task_id, adapter_id = won
    described = tenant.get(f"/v1/adapters/{adapter_id}").json()
    assert (described["object"], described["step"], described["val_loss"]) == ("adapter", 7, 0.75)
    assert described["bytes"] == sum(map(len, FILES.values()))
    assert {file["path"]: file["sha256"] for file in described["files"]} == {
        path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()
    }
    assert described["lineage"]["task_id"] == task_id
    assert tenant.get("/v1/adapters").json()["data"] == [described]
    assert tenant.get("/v1/adapters", params={"task_id": task_id}).json()["data"] == [described]
    assert tenant.get("/v1/adapters", params={"task_id": "other"}).json()["data"] == []
    winner = tenant.get(f"/v1/tasks/{task_id}").json()["winner"]
    assert (winner["adapter_id"], winner["index"], winner["val_loss"], winner["step"]) == (adapter_id, 1, 0.75, 7)
    assert winner["config"]["learning_rate"] == 1e-3
    assert tenant.get(f"/v1/jobs/{winner['job_id']}").json()["adapter_id"] == adapter_id


def test_each_file_has_its_sha256_for_an_etag(tenant, won):
    _, adapter_id = won
    for path, content in FILES.items():
        digest = hashlib.sha256(content)
        got = tenant.get(f"/v1/adapters/{adapter_id}/files/{path}")
        assert got.content == content
        assert got.headers["etag"] == f'"{digest.hexdigest()}"'
        assert got.headers["content-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
        again = tenant.get(f"/v1/adapters/{adapter_id}/files/{path}", headers={"if-none-match": got.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_file_the_adapter_has_not_got(tenant, won):
    _, adapter_id = won
    missing = tenant.get(f"/v1/adapters/{adapter_id}/files/config.json")
    assert missing.status_code == 404
    assert "it has README.md, adapter_config.json, adapter_model.safetensors" in missing.json()["detail"]


@pytest.mark.parametrize("by", ["adapter", "task"])
def test_the_archive_is_one_folder_and_always_the_same(tenant, won, by):
    task_id, adapter_id = won
    path = f"/v1/adapters/{adapter_id}/archive" if by == "adapter" else f"/v1/tasks/{task_id}/adapter"
    got = tenant.get(path)
    assert got.headers["content-type"] == "application/gzip"
    assert f"{adapter_id}.tar.gz" in got.headers["content-disposition"]
    assert unpack(got.content) == {f"{adapter_id}/{name}": content for name, content in FILES.items()}
    assert tenant.get(path).content == got.content
    assert tenant.get(path, headers={"if-none-match": got.headers["etag"]}).status_code == 304


def test_a_download_of_the_archive_goes_on_where_it_broke_off(tenant, won):
    task_id, adapter_id = won
    for path in (f"/v1/adapters/{adapter_id}/archive", f"/v1/tasks/{task_id}/adapter"):
        whole = tenant.get(path)
        rest = tenant.get(path, headers={"Range": "bytes=100-", "If-Range": whole.headers["etag"]})
        assert (rest.status_code, rest.content) == (206, whole.content[100:])
        assert rest.headers["content-range"] == f"bytes 100-{len(whole.content) - 1}/{len(whole.content)}"
        another = tenant.get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
        assert (another.status_code, another.content) == (200, whole.content)
        beyond = tenant.get(path, headers={"Range": f"bytes={len(whole.content)}-"})
        assert (beyond.status_code, beyond.json()["code"]) == (416, "range_outside")
        assert whole.headers["accept-ranges"] == "bytes"


def test_head_tells_of_a_download_what_get_would(tenant, won):
    task_id, adapter_id = won
    own = f"adapters/{adapter_id}"
    for path in (f"{own}/archive", f"tasks/{task_id}/adapter", f"{own}/files/adapter_model.safetensors"):
        got, told = tenant.get(f"/v1/{path}"), tenant.request("HEAD", f"/v1/{path}")
        assert (told.status_code, told.content) == (200, b"")
        assert told.headers["content-length"] == str(len(got.content))
        same = ("etag", "content-type", "content-disposition", "accept-ranges")
        assert [told.headers[name] for name in same] == [got.headers[name] for name in same]


@pytest.mark.parametrize("status", ["validating", "queued", "running", "paused"])
def test_there_is_no_winner_before_the_end(tenant, database, status):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task_id).values(status=status))
    refused = tenant.get(f"/v1/tasks/{task_id}/adapter")
    assert (refused.status_code, refused.json()["code"], refused.json()["task_status"]) == (409, "no_adapter_yet", status)
    assert f"The task is {status}; wait for its end" in refused.json()["detail"]


def test_a_failed_task_says_why_it_has_none(tenant, database):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task_id).values(status="failed", error="the dog ate it"))
    refused = tenant.get(f"/v1/tasks/{task_id}/adapter")
    assert (refused.status_code, refused.json()["code"]) == (404, "no_adapter")
    assert "the dog ate it" in refused.json()["detail"]


def test_what_a_cancelled_task_had_kept_stays(tenant, database, storage):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        kept = adapter(session, storage, jobs_of(session, task_id)[0], FILES).id
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    refused = tenant.get(f"/v1/tasks/{task_id}/adapter")
    assert (refused.status_code, refused.json()["code"]) == (404, "no_adapter")
    listed = tenant.get(f"/v1/adapters?task_id={task_id}")
    assert f"/v1/adapters?task_id={task_id}" in refused.json()["detail"]
    assert [one["id"] for one in listed.json()["data"]] == [kept]
    assert tenant.get(f"/v1/adapters/{kept}/archive").status_code == 200


def test_an_object_that_storage_lost_is_our_fault_and_said_before_the_first_byte(tenant, won, storage):
    task_id, adapter_id = won
    storage.delete(hashlib.sha256(FILES["adapter_config.json"]).hexdigest())
    for path in (f"/v1/tasks/{task_id}/adapter", f"/v1/adapters/{adapter_id}/files/adapter_config.json"):
        lost = tenant.get(path)
        assert (lost.status_code, lost.json()["code"]) == (500, "object_lost")


@pytest.mark.parametrize(
    ("precision", "says"),
    [
        ("bf16", "from_pretrained(BASE), "),
        ("fp8", "from_pretrained(BASE), "),
        ("nf4_double", 'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True'),
    ],
)
def test_an_archive_carries_a_readme_once_the_task_has_ended(tenant, database, storage, precision, says):
    task_id = tenant.task(precision=precision)["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[1]
        chunk(session, job, "val_loss", list(range(10, 400, 10)), [2.0 - step / 400 for step in range(10, 400, 10)])
        bare = {path: content for path, content in FILES.items() if path != "README.md"}
        adapter_id = adapter(session, storage, job, bare, val_loss=0.75).id
    path = f"/v1/adapters/{adapter_id}"
    assert tenant.get(f"{path}/files/README.md").status_code == 404
    before = tenant.get(f"{path}/archive")
    assert f"{adapter_id}/README.md" not in unpack(before.content)
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    after = tenant.get(f"{path}/archive")
    assert after.headers["etag"] != before.headers["etag"]
    told = unpack(after.content)[f"{adapter_id}/README.md"].decode()
    assert tenant.get(f"{path}/files/README.md").text == told
    assert tenant.get(f"{path}/archive").content == after.content
    for said in (
        "0.7500 after step 7",
        "| 1 (this one) |",
        "| 0 |",
        "vllm serve BASE",
        f"--max-lora-rank 16 --lora-modules {adapter_id}={adapter_id}\n",
        "PeftModel",
        '\nBASE = "..."  # where the weights of ',
        says,
    ):
        assert said in told
    assert "     390    1.0250" in told  # the curve's last point


def test_a_readme_says_that_its_adapter_is_a_mean(tenant, database, storage):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        bare = {path: content for path, content in FILES.items() if path != "README.md"}
        kept = adapter(session, storage, jobs_of(session, task_id)[1], bare, val_loss=0.75)
        kept.manifest = kept.manifest | {"averaged_steps": [5, 7, 9]}
        adapter_id = kept.id
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    told = tenant.get(f"/v1/adapters/{adapter_id}/files/README.md").text
    assert "0.7500 with the mean of the weights after steps 5, 7 and 9; the base alone" in told


def test_a_readmes_table_begins_with_the_winner(tenant, database, storage):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        first, second = jobs_of(session, task_id)
        bare = {path: content for path, content in FILES.items() if path != "README.md"}
        adapter_id = adapter(session, storage, first, bare, val_loss=0.25).id
        first.best_val_loss, second.best_val_loss = 0.25, 0.75
        ended = {"status": "succeeded", "winner_job_id": second.id}
        session.execute(update(Task).where(Task.id == task_id).values(**ended))
    told = tenant.get(f"/v1/adapters/{adapter_id}/files/README.md").text
    assert told.index("| 1 | ") < told.index("| 0 (this one) | ")


@pytest.mark.parametrize(("trend", "told"), [(8, True), (16, False), (None, False)])
def test_a_readme_says_of_which_rows_its_curve_is(tenant, database, storage, trend, told):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[1]
        chunk(session, job, "val_loss", [10, 20], [2.0, 1.0])
        bare = {path: content for path, content in FILES.items() if path != "README.md"}
        adapter_id = adapter(session, storage, job, bare, val_loss=0.75).id
        session.execute(update(Task).where(Task.id == task_id).values(trend_rows=trend, validation_rows=16))
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    text = tenant.get(f"/v1/adapters/{adapter_id}/files/README.md").text
    said = "Each point reads the first 8 of the 16 validation rows; the loss above reads all of them.\n\n```text"
    assert (said in text) == told
    assert ("Each point reads" in text) == told


@pytest.mark.parametrize(
    ("rows", "chat", "prompt"),
    [("chat", True, False), ("completion", False, True), ("text", False, True), ("preference", True, True)],
)
def test_the_readme_asks_as_the_rows_did(tenant, database, storage, rows, chat, prompt):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        bare = {path: content for path, content in FILES.items() if path != "README.md"}
        adapter_id = adapter(session, storage, jobs_of(session, task_id)[1], bare, val_loss=0.75).id
        session.execute(update(File).values(format=rows))
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    told = tenant.get(f"/v1/adapters/{adapter_id}/files/README.md").text
    code = told.partition("```python\n")[2].partition("```")[0]
    compile(code, "README.md", "exec")
    assert (".apply_chat_template(" in code, 'tokenizer("...", ' in code) == (chat, prompt)
    assert code.index("BASE = ") < code.index("from_pretrained(BASE")


def test_a_deleted_task_takes_everything_along_and_the_collector_follows(tenant, won, database, storage):
    task_id, adapter_id = won
    job_id = tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"][0]["id"]
    assert tenant.delete(f"/v1/tasks/{task_id}").status_code == 204
    paths = (f"tasks/{task_id}", f"tasks/{task_id}/metrics", f"jobs/{job_id}", f"adapters/{adapter_id}")
    for path in (*paths, f"tasks/{task_id}/adapter", f"adapters/{adapter_id}/archive", f"tasks/{task_id}/events"):
        assert tenant.get(f"/v1/{path}").status_code == 404, path
    assert tenant.get("/v1/tasks").json()["data"] == tenant.get("/v1/adapters").json()["data"] == []
    assert tenant.delete(f"/v1/tasks/{task_id}").status_code == 404
    sweep(database, storage)
    with database.begin() as session:
        assert session.get(Adapter, adapter_id) is not None  # the retention is not over
    sweep(database, storage, Retention(deleted=timedelta(0)))
    with database.begin() as session:
        assert session.get(Adapter, adapter_id) is None
        assert session.get(Task, task_id) is not None  # usage counts it


def test_a_task_that_has_not_ended_is_neither_deleted_nor_archived(tenant):
    task_id = tenant.task()["id"]
    for refused in (tenant.delete(f"/v1/tasks/{task_id}"), tenant.post(f"/v1/tasks/{task_id}/archive")):
        assert (refused.status_code, refused.json()["code"]) == (409, "task_open")
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert tenant.post(f"/v1/tasks/{task_id}/archive").json()["archived_at"]
    assert tenant.get("/v1/tasks", params={"archived": False}).json()["data"] == []
    assert [task["id"] for task in tenant.get("/v1/tasks", params={"archived": True}).json()["data"]] == [task_id]
    assert tenant.post(f"/v1/tasks/{task_id}/archive", params={"archived": False}).json()["archived_at"] is None
