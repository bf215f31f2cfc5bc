"""The acceptance walk over each storage: POST to adapter, the worker killed in between; nothing is lost, the sha256 agree."""

import json
import os
import re
import signal
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.service.storage.object_servers import CREDENTIALS, object_server
from tests.walk.running_stack import RunningStack, running_stack, unpacked
from tests.walk.test_crashes import QUICK, start, steps


def walk(motet: RunningStack, folder: Path) -> tuple[httpx.Response, Path]:
    """A task whose worker is killed, to its adapter: the last answer, and the folder that was downloaded."""
    task_id = start(motet)
    done = steps(motet.until(task_id, lambda task: task["status"] == "running" and steps(task) >= 8))
    os.kill(motet.pids["worker"], signal.SIGKILL)
    motet.until(task_id, lambda task: steps(task) > done)
    task = motet.ended(task_id)
    assert task["status"] == "succeeded"
    archive = motet.http.get(f"/v1/tasks/{task_id}/adapter", follow_redirects=True)
    assert archive.status_code == 200, archive.text
    found = unpacked(archive.content, folder)
    files = motet.http.get(f"/v1/adapters/{task['winner']['adapter_id']}").json()["files"]
    assert {file["path"] for file in files} <= {path.name for path in found.iterdir()}
    for file in files:
        assert sha256((found / file["path"]).read_bytes()).hexdigest() == file["sha256"]
    return archive, found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [pytest.param("folder", marks=pytest.mark.slow), "moto"])  # test_crashes kills over a folder
def test_a_task_survives_its_worker_and_its_adapter_comes_back(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        environment = dict(QUICK)
        if kind != "folder":
            server = stack.enter_context(object_server(kind, tmp_path))
            given = {name: value for name, value in server.settings().items() if value is not None}
            environment |= CREDENTIALS | {f"MOTET_{name.upper()}": str(value) for name, value in given.items()}
        motet = stack.enter_context(running_stack(tmp_path / "state", **environment))
        (tmp_path / "adapter").mkdir()
        archive, _ = walk(motet, tmp_path / "adapter")
        kept = list((tmp_path / "state" / "storage").glob("objects/??/*"))
        assert [answer.status_code for answer in archive.history] == ([] if kind == "folder" else [307])
        if kind == "folder":
            assert kept != []
            lines = [json.loads(line) for line in motet.log("api").read_text().splitlines()]
            routes = {(line["method"], line["path"]) for line in lines if line["event"] == "request" and line["status"] < 300}
            assert {("PUT", "/transfers/uploads/{secret}"), ("GET", "/transfers/objects/{secret}")} <= routes
            through_the_api = re.compile(r"/internal/v1/objects/.*|/internal/v1/placements/[^/]+/(files|objects)/.*")
            assert not [path for _, path in routes if through_the_api.fullmatch(path)], "workers are sent to the transfer port"
        else:
            assert kept == []
            put = [line for line in (tmp_path / "moto.log").read_text().splitlines() if "PUT /" in line]
            assert any("X-Amz-Signature" in line for line in put), "workers put by presigned URLs"
