"""The profile `cpu` of docker-compose.yml: the demo and all that it needs, on a machine without a GPU. Read without Docker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.test_containers import SERVICES, resolved
from worker.settings import Settings as WorkerSettings

WORKER, DEMO, API = (SERVICES[name] for name in ("worker-cpu", "demo", "api"))


def test_its_worker_is_that_of_gpus_but_for_the_device() -> None:
    other = {"build", "image", "profiles", "environment", "volumes", "depends_on", "deploy"}
    assert {key: WORKER[key] for key in WORKER if key not in other} == {
        key: value for key, value in SERVICES["worker"].items() if key not in other
    }
    assert not WORKER["deploy"], "it reserves no GPU"
    changed = WORKER["environment"].items() - SERVICES["worker"]["environment"].items()
    assert {name for name, _ in changed} == {"MOTET_NODE_NAME", "MOTET_WORKER_DEVICE"}
    assert WORKER["volumes"][0] != SERVICES["worker"]["volumes"][0], "each node has a credential of its own"


def test_its_worker_starts_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("MOTET_")]:
        monkeypatch.delenv(variable)
    for variable, value in resolved("worker-cpu").items():
        monkeypatch.setenv(variable, value)
    assert WorkerSettings.load().worker_device == "cpu"


def test_who_names_one_service_gets_all_that_it_needs() -> None:
    def needed(name: str) -> set[str]:
        needs = SERVICES[name].get("depends_on", {})
        return {name}.union(*(needed(need) for need in needs))

    service = {"postgres", "valkey", "migrate", "api", "queue", "reconcile"}
    assert needed("worker-cpu") == service | {"worker-cpu"}
    assert needed("demo") == service | {"worker-cpu", "demo"}, "and no worker that wants a GPU"


def test_torch_may_be_one_without_cuda() -> None:
    assert {built["build"]["args"]["TORCH_INDEX"] for built in (WORKER, DEMO)} == {"${TORCH_INDEX:-}"}


def test_the_demo_finds_the_service_its_keys_and_its_base() -> None:
    base = "./examples:/examples:ro"
    assert all(base in service["volumes"] for service in (API, WORKER, DEMO)), "a base is at one path everywhere"
    assert DEMO["working_dir"] == "/"
    assert DEMO["network_mode"] == "service:api", "credentials.json names the loopback address"
    assert DEMO["environment"]["MOTET_STATE_DIR"] == API["environment"]["MOTET_STATE_DIR"]
    assert "motet:/var/lib/motet" in DEMO["volumes"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 3, "no stack runs on this machine"),
        (("--port", "1"), 2, "takes neither --port nor --device"),
    ],
)
def test_a_demo_of_a_running_motet_starts_none(words: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "motet"), "demo", "--running", *words]
    environment = os.environ | {"MOTET_STATE_DIR": str(tmp_path), "COLUMNS": "200"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, says in ran.stderr) == (code, True), ran.stderr
    assert list(tmp_path.iterdir()) == []
