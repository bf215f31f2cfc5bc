"""The client's own retries against a service whose process is killed after it committed and before it answered."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from motet import Client
from sqlalchemy import select, update

from service.files.models import File
from service.tasks.models import Task
from service.tenants.models import Tenant
from tests.service.api import chat_rows, jsonl
from tests.service.live_server import PATIENCE, until


class Service:
    """`python -m service api` on one port, and in front of it a relay: armed, it kills the process when the first byte of an
    answer to a POST is there, and starts another one."""

    def __init__(self, environment: dict[str, str], port: int) -> None:
        self._environment, self._port = environment | {"MOTET_PORT": str(port)}, port
        self.armed, self.killed = False, 0
        self._up = threading.Event()  # else a connection waits, as long as its client does
        self._process = self._start()
        self._relay = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._relay.getsockname()[1]}"

    def close(self) -> None:
        self._relay.close()
        self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", "service", "api"], env=self._environment)
        until(lambda: process.poll() is not None or self._answers())
        assert process.poll() is None
        self._up.set()
        return process

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/readyz", trust_env=False, timeout=PATIENCE).status_code == 200
        except httpx.TransportError:
            return False

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._relay.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        if not self._up.wait(PATIENCE):
            near.close()
            return
        far = socket.create_connection(("127.0.0.1", self._port))
        posts = threading.Event()

        def up() -> None:
            while block := _received(near):
                if block.startswith(b"POST"):
                    posts.set()
                far.sendall(block)

        threading.Thread(target=up, daemon=True).start()
        while block := _received(far):
            if self.armed and posts.is_set():
                self.armed = False
                self._up.clear()
                self._kill()
                self.killed += 1
                self._process = self._start()
                break
            near.sendall(block)
        near.shutdown(socket.SHUT_RDWR)
        near.close()
        far.close()


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(2**16)
    except OSError:
        return b""


@pytest.fixture
def service(settings, environment_of, free_port) -> Iterator[Service]:
    made = Service(environment_of(settings), free_port())
    yield made
    made.close()


@pytest.fixture
def user(service, tenant) -> Iterator[Client]:
    with Client(service.url, tenant.key) as made:
        yield made


def test_a_task_and_a_file_whose_answers_were_lost_are_made_once(service, user, tenant, database, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(jsonl(*chat_rows(20)))
    with database.begin() as session:  # the file fills the store: its second sending must not be refused for it
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(stored_bytes_quota=rows.stat().st_size))
    service.armed = True
    file = user.files.upload(rows)
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(stored_bytes_quota=None))
    service.armed = True
    task = user.tasks.create(tenant.spec(file.id))
    assert service.killed == 2
    with database.begin() as session:
        assert list(session.scalars(select(File.id).where(File.tenant_id == tenant.tenant_id))) == [file.id]
        assert list(session.scalars(select(Task.id).where(Task.tenant_id == tenant.tenant_id))) == [task.id]


def test_a_key_of_one_file_is_refused_for_another(tenant):
    key = {"idempotency-key": "upload-1"}

    def upload(count: int, name: str = "a.jsonl"):
        return tenant.post("/v1/files", files={"file": (name, jsonl(*chat_rows(count)))}, headers=key)

    first, again = upload(3), upload(3)
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    for other in (upload(4), upload(3, "b.jsonl")):
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    wrong = tenant.post("/v1/files", files={"file": ("a.jsonl", b"no json")}, headers={"idempotency-key": "upload-2"})
    assert wrong.status_code == 422
    files = {"file": ("a.jsonl", jsonl(*chat_rows(2)))}
    mended = tenant.post("/v1/files", files=files, headers={"idempotency-key": "upload-2"})
    assert mended.status_code == 201
