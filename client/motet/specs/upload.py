"""`motet submit` and `motet preview`: upload a spec's files, then create its task or preview its rows. Knows specs and the
client."""

from collections.abc import Iterable

from motet.api.client import Client
from motet.api.errors import ApiError
from motet.api.resources import Task
from motet.display.narrator import Narrator
from motet.display.preview import Preview
from motet.specs.data_checks import check
from motet.specs.spec_file import SpecFile


def submit(client: Client, spec: SpecFile, narrator: Narrator) -> Task:
    """Upload each file once and create the task. If the service refuses the task, its uploads are deleted."""
    draft = spec.with_files(dict.fromkeys(spec.files, "not uploaded yet"))
    check(draft, dict(spec.files), (model.name for model in client.models.list()))
    uploaded: dict[str, str] = {}
    try:
        for field, path in spec.files.items():
            with narrator.doing(f"uploading {path.name}"):
                file = client.files.upload(path)
            narrator.say(f"uploaded {path.name}: {file.rows:,} rows, {file.bytes:,} bytes ({file.id})")
            uploaded[field] = file.id
        with narrator.doing("submitting"):
            task = client.tasks.create(spec.with_files(uploaded))
    except ApiError:
        _delete(client, uploaded.values(), narrator)
        raise
    narrator.say(f"submitted {task.id}: {sum(task.jobs.values())} jobs")
    return task


def _delete(client: Client, file_ids: Iterable[str], narrator: Narrator) -> None:
    for file_id in file_ids:
        try:
            client.files.delete(file_id)
        except ApiError as error:
            narrator.say(f"{file_id} stays uploaded: {error}")
        else:
            narrator.say(f"deleted {file_id} again: the task was refused")


def preview(client: Client, spec: SpecFile, rows: int) -> Preview:
    """The spec's first training rows as its task would read them. The uploads made for it are deleted afterwards."""
    path = spec.files.get("file_id")
    uploaded = client.files.upload(path).id if path is not None else None
    task = spec.with_files(dict.fromkeys(spec.files, uploaded or "not needed"))
    try:
        return client.files.preview(
            task.dataset.file_id,
            task.base_model,
            objective=task.objective.model_dump(mode="json"),
            max_seq_len=task.training.max_seq_len,
            rows=rows,
        )
    finally:
        if uploaded is not None:
            client.files.delete(uploaded)
