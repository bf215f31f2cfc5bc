"""Transfers over a folder with a transfer port, by real processes: no byte of an object passes through those of the API."""

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from motet import Client
from openai import OpenAI
from sqlalchemy import update

from contract.messages.upload_messages import UploadRequest
from service.database.engine import Database
from service.storage.connect import storage_of
from service.tasks.models import Task
from tests.service.adapters.test_adapters import unpack
from tests.service.api import PAIR, jsonl
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.scripted import ScriptedNode
from tests.service.fleet.test_objects import grant, put
from tests.service.live_server import PATIENCE, until
from tests.service.processes import Api, serving
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.scraped import samples
from tests.service.storage.transfer_server import by_a_port
from worker.api_client import PlacementLink, Refused

SIZE = 12 * 2**20
LITTLE = SIZE // 4  # bytes that a process of the API may read and write meanwhile, for its own log and loading
ROWS = jsonl(*(PAIR | {"prompt": os.urandom(2**20).hex()} for _ in range(SIZE // 2**21)))


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, free_port):
    folder = tmp_path_factory.mktemp("service")
    return settings_for(database_url, folder, port=free_port(), **by_a_port(free_port()))


@pytest.fixture(scope="module")
def storage(settings, database_url):
    return storage_of(settings, Database(database_url, pool_size=1))


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log") / "api.log"


@pytest.fixture(scope="module")
def api(settings, environment_of, log):
    with serving(settings, environment_of(settings), log) as started:
        httpx.get(f"http://127.0.0.1:{settings.transfer_port}/livez", timeout=PATIENCE).raise_for_status()
        yield started


@pytest.fixture
def public(api, tenant):
    with httpx.Client(base_url=api.url, headers=tenant.headers, timeout=PATIENCE) as made:
        yield made


@pytest.fixture
def won(tenant, public, database, storage):
    """A task that succeeded, whose archive was made; the ids of the task and of the winner's adapter."""
    task_id = tenant.task()["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[1]
        made = adapter(session, storage, job, {"adapter_config.json": b"{}", "adapter_model.safetensors": os.urandom(SIZE)})
        session.execute(update(Task).where(Task.id == task_id).values(status="succeeded", winner_job_id=job.id))
    assert public.get(f"/v1/tasks/{task_id}/adapter").status_code == 307
    return task_id, made.id


@pytest.fixture
def link(api) -> PlacementLink:
    return PlacementLink(api.url)


@pytest.fixture
def placement(api, tenant, plan, database):
    node = ScriptedNode(
        httpx.Client(base_url=api.url, timeout=PATIENCE), join_token(database, "by-a-port"), "by-a-port"
    ).register()
    task = tenant.task(dataset={"file_id": tenant.upload(ROWS).json()["id"]})
    plan()
    return node.take(task["id"])


def serving_port(api: Api, port: int) -> int:
    """The member of the API's processes that accepted a connection on this port."""
    local = f"0100007F:{port:04X}"
    with httpx.Client(timeout=PATIENCE) as client:  # which stays connected meanwhile
        client.get(f"http://127.0.0.1:{port}/livez").raise_for_status()
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        accepted = {f"socket:[{words[9]}]" for words in lines if (words[1], words[3]) == (local, "01")}
        members = Path(f"/proc/{api.process.pid}/task/{api.process.pid}/children").read_text().split()
        (found,) = [int(pid) for pid in members if accepted & set(open_files(int(pid)))]
    return found


def open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(descriptor)


def moved_bytes(pid: int) -> int:
    """What a process read from files and wrote to them; sockets do not count."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    counted = dict(line.split(": ") for line in lines)
    return int(counted["rchar"]) + int(counted["wchar"])


@pytest.fixture
def past_the_api(api, settings):
    """What the test moves, it must move past the API's own process."""
    at_api, at_port = serving_port(api, settings.port), serving_port(api, settings.transfer_port)
    assert at_api != at_port
    before = moved_bytes(at_api), moved_bytes(at_port)
    yield
    assert moved_bytes(at_api) - before[0] < LITTLE
    assert moved_bytes(at_port) - before[1] >= SIZE


def uploaded(link, placement, folder: Path, announced: bytes, sent: bytes) -> bool:
    """As an executor does; whether the object was there already."""
    path = folder / "object"
    path.write_bytes(sent)
    fence, sha256 = placement.given.fence, hashlib.sha256(announced).hexdigest()
    asked = UploadRequest(fence=fence, sha256=sha256, bytes=len(announced), direct=True)
    granted = link.grant(placement.given.placement_id, placement.given.token, asked)
    if not granted.exists:
        assert granted.headers == {}, "the port needs no token of the placement"
        link.put(granted, path)
    return granted.exists


def test_a_worker_uploads_past_the_api(placement, link, storage, tmp_path, past_the_api):
    content = os.urandom(SIZE)
    assert not uploaded(link, placement, tmp_path, content, content)
    with storage.open(hashlib.sha256(content).hexdigest()) as source:
        assert source.read() == content
    assert uploaded(link, placement, tmp_path, content, content)


def test_a_worker_downloads_past_the_api_and_resumes(placement, link, past_the_api):
    file, given = placement.given.train_file, placement.given
    whole = b"".join(link.file(given.placement_id, given.token, file.file_id))
    assert (whole, hashlib.sha256(whole).hexdigest()) == (ROWS, file.sha256)
    rest = b"".join(link._download(f"placements/{given.placement_id}/files/{file.file_id}", given.token, 1000))
    assert rest == ROWS[1000:]


def test_other_bytes_and_a_dead_placement_are_refused(placement, link, storage, tmp_path):
    with pytest.raises(Refused) as refused:
        uploaded(link, placement, tmp_path, b"these bytes", b"other bytes")
    assert (refused.value.status, refused.value.body["errors"][0]["code"]) == (422, "object_mismatch")
    assert not storage.exists(hashlib.sha256(b"these bytes").hexdigest())
    placement.node.lost(placement)
    with pytest.raises(Refused) as refused:
        uploaded(link, placement, tmp_path, b"x", b"x")
    assert refused.value.code == "fence_stale"


def test_a_worker_of_an_earlier_version_sends_and_fetches_through_the_api(placement, storage):
    content = b"from an older worker"
    granted = grant(placement, content)
    assert granted["url"].startswith("/internal/v1/objects/")
    assert put(placement, granted, content) == (204, None)
    assert storage.exists(hashlib.sha256(content).hexdigest())
    fetched = placement.call("GET", f"files/{placement.given.train_file.file_id}")
    assert (fetched.status_code, fetched.content) == (200, ROWS)


def test_a_tenant_downloads_a_file_past_the_api(tenant, public, api, log, past_the_api):
    """By plain HTTP, and by OpenAI's SDK as it is; the log has no link that may still work."""
    file_id = tenant.upload(ROWS).json()["id"]
    location = public.get(f"/v1/files/{file_id}/content").headers["location"]
    assert httpx.get(location, timeout=PATIENCE).content == ROWS
    with OpenAI(base_url=f"{api.url}/openai/v1", api_key=tenant.key, max_retries=0) as sdk:
        assert sdk.files.content(file_id).content == ROWS
    until(lambda: '"/transfers/objects/{secret}"' in log.read_text())
    assert location.rpartition("/")[2] not in log.read_text()


def test_a_tenant_downloads_an_adapter_past_the_api(tenant, won, public, api, storage, tmp_path, past_the_api):
    task_id, adapter_id = won
    with Client(api.url, tenant.key) as client:
        folder = client.adapters.download(adapter_id, tmp_path / "adapter")
    (weights,) = [file for file in public.get(f"/v1/adapters/{adapter_id}").json()["files"] if file["bytes"] == SIZE]
    assert hashlib.sha256((folder / weights["path"]).read_bytes()).hexdigest() == weights["sha256"]
    for path in (f"tasks/{task_id}/adapter", f"adapters/{adapter_id}/archive"):
        archive = public.get(f"/v1/{path}", follow_redirects=True)
        assert [answer.status_code for answer in archive.history] == [307]
        with storage.open(weights["sha256"]) as source:
            assert unpack(archive.content)[f"{adapter_id}/{weights['path']}"] == source.read()


def test_a_member_that_is_killed_is_replaced_and_the_api_does_not_notice(tenant, public, api, settings):
    file_id = tenant.upload(jsonl(PAIR)).json()["id"]
    at_api, killed = serving_port(api, settings.port), serving_port(api, settings.transfer_port)
    os.kill(killed, signal.SIGKILL)
    answer = public.get(f"/v1/files/{file_id}/content", follow_redirects=True)  # its connection waits for the next one
    assert (answer.status_code, answer.content) == (200, jsonl(PAIR))
    assert serving_port(api, settings.transfer_port) not in (killed, at_api)
    assert serving_port(api, settings.port) == at_api


def test_what_the_port_answers_is_counted_with_the_rest(tenant, public, admin, api):
    file_id = tenant.upload(jsonl(PAIR)).json()["id"]
    name = ("motet_api_requests_total", "GET", "/transfers/objects/{secret}", "200")
    with httpx.Client(base_url=api.url, headers=admin.headers, timeout=PATIENCE) as watching:
        before = samples(watching.get("/metrics")).get(name, 0)
        assert public.get(f"/v1/files/{file_id}/content", follow_redirects=True).status_code == 200
        until(lambda: samples(watching.get("/metrics")).get(name, 0) == before + 1)


def test_all_members_end_with_a_stop_signal(settings, environment_of, tmp_path, free_port):
    settings = settings.model_copy(update={"port": free_port(), "transfer_port": free_port()})
    with serving(settings, environment_of(settings), tmp_path / "log") as api:
        members = [serving_port(api, settings.port), serving_port(api, settings.transfer_port)]
        api.process.send_signal(signal.SIGTERM)
        assert api.process.wait(PATIENCE) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in members)
