"""Uploads a spec's files for what needs them: creating its task, estimating it, previewing its rows. What was uploaded for a
task that does not come to be is deleted again. Knows specs and the client."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from contract.task_spec import TaskSpec
from motet.api.client import Client
from motet.api.errors import ApiError
from motet.api.resources import Estimate, Preview, Task
from motet.display.console_output import ConsoleOutput
from motet.specs.data_checks import check
from motet.specs.spec_file import SpecFile


def submit(client: Client, spec: SpecFile, output: ConsoleOutput) -> Task:
    """Upload each file once and create the task."""
    _check(client, spec)
    uploaded: dict[str, str] = {}
    try:
        for field, path in spec.files.items():
            with output.doing(f"uploading {path.name}"):
                file = client.files.upload(path)
            output.say(f"uploaded {path.name}: {file.rows:,} rows, {file.bytes:,} bytes ({file.id})")
            uploaded[field] = file.id
        with output.doing("submitting"):
            task = client.tasks.create(spec.with_files(uploaded))
    except (ApiError, KeyboardInterrupt):
        _delete(client, uploaded.values(), output)
        raise
    output.say(f"submitted {task.id}: {(jobs := sum(task.jobs.values()))} job{'s' if jobs != 1 else ''}")
    for problem in task.problems or ():
        output.say(f"{problem.field}: {problem.message}")
    return task


def estimate(client: Client, spec: SpecFile, output: ConsoleOutput) -> tuple[TaskSpec, Estimate]:
    """The whole spec and its estimate."""
    _check(client, spec)
    with output.doing("estimating"), _uploaded(client, spec) as files:
        whole = spec.with_files(files)
        return whole, client.tasks.estimate(whole)


def preview(client: Client, spec: SpecFile, rows: int) -> Preview:
    """The spec's first training rows as its task would read them."""
    with _uploaded(client, spec, only="file_id") as files:
        task = spec.with_files(dict.fromkeys(spec.files, "not needed") | dict(files))
        return client.files.preview(
            task.dataset.file_id,
            task.base_model,
            objective=task.objective.model_dump(mode="json"),
            max_seq_len=task.training.max_seq_len,
            rows=rows,
        )


def _check(client: Client, spec: SpecFile) -> None:
    draft = spec.with_files(dict.fromkeys(spec.files, "not uploaded yet"))
    check(draft, dict(spec.files), (model.name for model in client.models.list()))


@contextmanager
def _uploaded(client: Client, spec: SpecFile, only: str | None = None) -> Iterator[Mapping[str, str]]:
    """The ids of the spec's files by field, uploaded for the time of the context."""
    ids: dict[str, str] = {}
    try:
        for field, path in spec.files.items():
            if only in (None, field):
                ids[field] = client.files.upload(path).id
        yield ids
    finally:
        for file_id in ids.values():
            client.files.delete(file_id)


def _delete(client: Client, file_ids: Iterable[str], output: ConsoleOutput) -> None:
    for file_id in file_ids:
        try:
            client.files.delete(file_id)
        except ApiError as error:
            output.say(f"{file_id} stays uploaded: {error}")
        else:
            output.say(f"deleted {file_id} again: no task was made of it")
