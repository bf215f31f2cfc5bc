"""`motet submit`: upload what a spec names, create its task, say where to look. Knows specs and the client."""

from motet.client import Client
from motet.narrator import Narrator
from motet.resources import Task
from motet.specfile import SpecFile


def submit(client: Client, spec: SpecFile, narrator: Narrator) -> Task:
    """Upload each file once and create the task."""
    uploaded: dict[str, str] = {}
    for field, path in spec.files.items():
        with narrator.doing(f"uploading {path.name}"):
            file = client.files.upload(path)
        narrator.say(f"uploaded {path.name}: {file.rows:,} rows, {file.bytes:,} bytes ({file.id})")
        uploaded[field] = file.id
    with narrator.doing("submitting"):
        task = client.tasks.create(spec.with_files(uploaded))
    narrator.say(f"submitted {task.id}: {sum(task.jobs.values())} jobs")
    return task
