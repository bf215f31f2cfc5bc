"""The internal API on a port of its own: each port serves its own, both the probes, by one process or by several."""

import socket

import httpx
import pytest
from pydantic import ValidationError

from tests.service.fleet.fixtures import join_token, nothing_left  # noqa: F401  (a fixture)
from tests.service.fleet.scripted import ScriptedNode
from tests.service.live_server import PATIENCE
from tests.service.processes import serving

PUBLIC = ("/v1/tasks", "/v1/admin/nodes", "/openai/v1/models", "/openapi.json", "/metrics", "/nowhere")
INTERNAL = ("/internal/v1/nodes/x/desired", "/internal/v1/nodes", "/internal/v1/placements/x/reports", "/internal/v1/nowhere")


@pytest.fixture(params=[1, 2], ids=["one process", "two"])
def two_ports(request, database_url, settings_for, tmp_path, free_port):
    return settings_for(database_url, tmp_path, port=free_port(), internal_port=free_port(), api_processes=request.param)


@pytest.fixture
def ports(two_ports, environment_of, tmp_path):
    """Clients of the public port and of the internal one."""
    with (
        serving(two_ports, environment_of(two_ports), tmp_path / "log") as api,
        httpx.Client(base_url=api.url, timeout=PATIENCE) as public,
        httpx.Client(base_url=f"http://127.0.0.1:{two_ports.internal_port}", timeout=PATIENCE) as internal,
    ):
        yield public, internal


def test_each_port_serves_its_own(ports, two_ports, database, nothing_left):  # noqa: F811
    public, internal = ports
    for path in PUBLIC:
        answer = internal.get(path, headers={"Host": f"127.0.0.1:{two_ports.port}"})
        problem = answer.json() if "/openai/" not in path else answer.json()["error"]
        assert (answer.status_code, problem["code"]) == (404, "route_unknown"), path
        assert answer.headers["x-request-id"]
    for path in INTERNAL:
        for method in ("GET", "POST", "PUT", "OPTIONS"):
            answer = public.request(method, path, headers={"Host": f"127.0.0.1:{two_ports.internal_port}"}, content=b"x" * 9999)
            assert (answer.status_code, answer.json()["code"]) == (404, "route_unknown"), path
    for http in ports:
        assert http.get("/livez").status_code == http.get("/readyz").status_code == 200
    assert public.get("/v1/tasks").status_code == public.get("/metrics").status_code == 401
    node = ScriptedNode(internal, join_token(database, "inside"), "inside").register()
    assert node.beat().status_code == 200
    assert ScriptedNode(public, "", "outside").ask_to_join("x").status_code == 404


def test_without_one_a_single_port_serves_all(client):
    assert client.get("/internal/v1/nodes/x/desired").status_code == 401
    assert client.get("/v1/tasks").status_code == 401


@pytest.mark.parametrize("changes", [{"port": 9000, "internal_port": 9000}, {"internal_port": 0}, {"internal_port": 65536}])
def test_a_port_that_cannot_be_is_refused(settings_for, database_url, tmp_path, changes):
    with pytest.raises(ValidationError, match=r"(?i)internal_port"):
        settings_for(database_url, tmp_path, **changes)


def test_a_port_that_is_taken_ends_the_start(two_ports, environment_of, tmp_path):
    with (
        socket.create_server(("127.0.0.1", two_ports.internal_port)),
        pytest.raises(AssertionError, match="the API ended with"),
        serving(two_ports, environment_of(two_ports), tmp_path / "log"),
    ):
        pass
