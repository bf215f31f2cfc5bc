"""docker-compose.yml and the Dockerfile, read without Docker: what they name must exist, and mean what they think it means."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from deploy.devstack import valkey
from service import prefork
from service.settings import Settings as ServiceSettings
from service.webhooks import mail
from tests.deploy.settings_variables import secret_variables, variables
from worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
PROGRAMS = {name: service for name, service in OURS.items() if name != "demo"}  # which reads no settings but where the keys are
KEYS = {
    *("build", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "init", "ports", "restart"),
    *("entrypoint", "network_mode", "profiles", "shm_size", "stop_grace_period", "user", "volumes", "working_dir"),
}
CONDITIONS = {"service_healthy", "service_started", "service_completed_successfully"}
SETTINGS: dict[str, type[BaseSettings]] = {"service": ServiceSettings, "worker": WorkerSettings}


def instructions() -> list[list[str]]:
    """The Dockerfile's instructions as words, continuation lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def stages() -> dict[str, list[list[str]]]:
    """The instructions of each named stage, the FROM line first."""
    found: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []  # what stands before the first
    for words in instructions():
        if words[0] == "FROM":
            current = found.setdefault(words[3], [])
        current.append(words)
    return found


def modules_run(command: list[str]) -> list[list[str]]:
    """What a command runs as `python -m module words...`, inside `sh -c` too."""
    parts = re.split(r"&&|;", command[2]) if command[:2] == ["sh", "-c"] else [shlex.join(command)]
    return [words[2:] for part in parts if (words := shlex.split(part))[:2] == ["python", "-m"]]


def test_the_services_are_those_of_the_stack() -> None:
    assert set(SERVICES) == {
        *("postgres", "valkey", "migrate", "api", "queue", "reconcile", "worker", "worker-cpu", "demo", "serve")
    }
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"serve": ["serve"], "worker-cpu": ["cpu"], "demo": ["cpu"]}
    assert SERVICES["postgres"]["image"] == "${POSTGRES_IMAGE:-postgres:18}"
    assert SERVICES["valkey"]["image"] == "${VALKEY_IMAGE:-valkey/valkey:9}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_what_compose_requires(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= KEYS
    assert "image" in service
    assert all(isinstance(value, str) for value in service["environment"].values()), "numbers and booleans want quotes"
    for volume in service.get("volumes", []):
        source = re.sub(r"\$\{[^}]*\}", "/", volume).split(":")[0]
        assert source.startswith(("/", "./")) or source in COMPOSE["volumes"], volume
    for need, how in service.get("depends_on", {}).items():
        assert need in SERVICES
        assert how["condition"] in CONDITIONS
        assert ("healthcheck" in SERVICES[need]) == (how["condition"] == "service_healthy")
        assert (SERVICES[need].get("restart") == "no") == (how["condition"] == "service_completed_successfully")
        enabled = set(SERVICES[need].get("profiles", service.get("profiles", [])))
        assert set(service.get("profiles", [])) <= enabled, f"{need} is not there where {name} is"
    if "healthcheck" in service:
        assert set(service["healthcheck"]) == {"test", "interval", "timeout", "retries"}
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}


def test_no_named_volume_is_idle() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert set(COMPOSE["volumes"]) <= used


def test_every_secret_must_be_set_and_none_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    asked = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    secret = {(name, rest) for name, rest in asked if re.search("PASSWORD|SECRET|TOKEN", name)}
    optional = {
        "HF_TOKEN",
        "MOTET_METRICS_TOKEN",
        "MOTET_SECRET_KEYS_BEFORE",
        "MOTET_OIDC_CLIENT_SECRET",
        "MOTET_AUTOSCALING_SECRETS",
        "MOTET_WORKER_HOSTS_SECRET",
    }
    secret -= {(name, ":-") for name in optional}  # not needed, and empty where they are not given
    assert {name for name, _ in secret} == {
        *("POSTGRES_PASSWORD", "POSTGRES_SYSTEM_PASSWORD", "POSTGRES_APP_PASSWORD", "VALKEY_PASSWORD", "VALKEY_NODE_PASSWORD"),
        *("MOTET_SECRET_KEY", "MOTET_JOIN_TOKEN"),
    }
    assert all(rest.startswith(":?set ") for _, rest in secret)
    assert not re.search(r"(?<!\$)\$\w", text), "a variable without braces has no error of its own"


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_variable_is_a_setting_and_every_required_setting_is_there(name: str) -> None:
    service = PROGRAMS[name]
    settings = SETTINGS[service["build"]["target"]]
    given = set(service["environment"])
    assert given <= variables(settings)
    assert given >= variables(settings, required=True)


def test_all_who_call_the_hub_call_the_same_one() -> None:
    given = {name for name, service in SERVICES.items() if "HF_ENDPOINT" in service.get("environment", {})}
    assert {"api", "reconcile", "worker"} <= given, "the reconciler copies bases, imports and pushes"


@pytest.mark.parametrize("name", ["api", "queue", "reconcile"])
def test_a_program_is_killed_only_after_its_calls_in_flight_have_ended(name: str) -> None:
    longest = max(prefork._PATIENCE_SECONDS, mail._ALL_SECONDS)
    assert int(SERVICES[name].get("stop_grace_period", "10s").removesuffix("s")) > longest  # 10 s is Docker's


def test_every_secret_setting_can_be_given() -> None:
    """The other optional settings are added where they are wanted; what holds a secret is not left to be found out."""
    given = {name for service in OURS.values() for name in service["environment"]}
    assert secret_variables(ServiceSettings) | secret_variables(WorkerSettings) <= given


def test_every_command_is_one_that_the_package_has() -> None:
    usage = subprocess.run([sys.executable, "-m", "service"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert usage.returncode == 2
    accepted: set[tuple[str, ...]] = {("service", word) for word in re.findall(r"\w+", usage.stderr.partition("service ")[2])}
    accepted.add(("worker",))
    dockerfile = [yaml.safe_load(" ".join(words[1:])) for words in instructions() if words[0] == "CMD"]
    run = [
        tuple(words)
        for command in [*(service["command"] for service in OURS.values()), *dockerfile]
        for words in modules_run(command)
    ]
    assert set(run) == {*((("service", word)) for word in ("migrate", "bootstrap", "api", "queue", "reconcile")), ("worker",)}
    assert SERVICES["demo"]["command"] in dockerfile
    assert set(run) <= accepted
    assert (ROOT / "worker" / "__main__.py").is_file()


def test_images_are_built_of_what_is_there() -> None:
    found = stages()
    assert {service["build"]["target"] for service in OURS.values()} == {"service", "worker", "demo"} <= set(found)
    ignored = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().split()}
    known: set[str] = set()
    for name, stage in found.items():
        base = stage[0][1]
        assert base == "${PYTHON_IMAGE}" or base in known, f"{name} stands on {base}"
        for words in (words for words in stage if words[0] == "COPY"):
            if words[1].startswith("--from="):
                assert words[1].removeprefix("--from=") in known
                continue
            for source in words[1:-1]:
                assert (ROOT / source).exists(), f"{name} copies {source}"
                assert source not in ignored
        known.add(name)


@pytest.mark.parametrize("target", ["service", "worker", "demo"])
def test_an_image_runs_as_an_ordinary_user_and_its_packages_are_pinned_by_hash(target: str) -> None:
    found = stages()
    assert [words[1] for words in found[target] if words[0] == "USER"] == [
        "10001:10001"
    ]  # a number: Kubernetes knows it is not root
    stage, pip = f"build-{target}", []
    assert f"--from={stage}" in [words[1] for words in found[target] if words[0] == "COPY"]
    while stage in found:
        pip += [" ".join(words) for words in found[stage] if words[0] == "RUN" and "install" in words]
        stage = found[stage][0][1]
    assert len(pip) > 2
    for line in pip:
        assert "--no-deps" in line
        assert "--require-hashes" in line or "/wheels/*.whl" in line
    assert any("torch" in line for line in pip) == (target != "service")


def test_the_wheel_in_all_images_holds_every_package() -> None:
    copied = {source for words in stages()["wheel"] if words[0] == "COPY" for source in words[1:-1]}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"kernels", "client"}
    assert packages - {"tests", "benchmarks", "examples"} <= copied


def test_only_migrations_know_the_owner_of_the_database() -> None:
    knowing = [name for name, service in SERVICES.items() if "${POSTGRES_PASSWORD" in str(service["environment"])]
    assert knowing == ["postgres", "migrate"]
    users = {name: re.findall(r"//(\w+):", made["environment"]["MOTET_REDIS_URL"]) for name, made in PROGRAMS.items()}
    expected = {name: ["node" if name.startswith("worker") else "service"] for name in PROGRAMS}
    assert users == expected


def test_the_roles_of_valkey_are_those_of_the_stack() -> None:
    config = " ".join(SERVICES["valkey"]["command"]).replace("%%", "%")
    assert "user default off resetpass" in config
    for role, rights in valkey.USERS.items():
        assert f"user {role} on >%s {rights}\\n" in config


def resolved(name: str) -> dict[str, str]:
    """The service's environment as compose makes it where only what must be set is set."""
    made = {"MOTET_MODELS": "/models"}

    def value(found: re.Match[str]) -> str:
        variable, rest = found.groups()
        return rest[2:] if rest.startswith(":-") else made.setdefault(variable, secrets.token_hex(32))

    given = SERVICES[name]["environment"]
    return {key: re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", value, text) for key, text in given.items()}


@pytest.mark.parametrize("name", ["migrate", "api", "queue", "reconcile"])
def test_as_it_stands_it_starts_and_trusts_no_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("MOTET_")]:
        monkeypatch.delenv(variable)
    for variable, value in resolved(name).items():
        monkeypatch.setenv(variable, value)
    settings = ServiceSettings.load()
    assert settings.trusted_proxies == ()
    assert settings.internal_port is not None
    nodes = tuple(resolved(worker)["MOTET_NODE_NAME"] for worker in ("worker", "worker-cpu"))
    assert (settings.join_nodes == nodes) == (name == "migrate")


def test_workers_call_a_port_that_is_not_published() -> None:
    internal = SERVICES["api"]["environment"]["MOTET_INTERNAL_PORT"]
    for worker in ("worker", "worker-cpu"):
        assert SERVICES[worker]["environment"]["MOTET_API_URL"] == f"http://api:{internal}"
    environment = SERVICES["api"]["environment"]
    published = [environment["MOTET_PORT"], environment["MOTET_TRANSFER_PORT"]]
    assert [port.rpartition(":")[2] for port in SERVICES["api"]["ports"]] == published
    for port, own in zip(SERVICES["api"]["ports"], published, strict=True):  # links name the port itself
        assert port.endswith(f":-127.0.0.1:{own}}}:{own}")


def test_serve_looks_for_adapters_and_bases_where_they_are_mounted() -> None:
    """tests/worker/adapters/test_vllm_loads.py holds its options against vLLM's own."""
    serve = SERVICES["serve"]
    mounts = dict(volume.rsplit(":", 2)[::-1][1:] for volume in serve["volumes"])
    assert mounts[serve["working_dir"]].startswith("${MOTET_MODELS:?")
    assert mounts[serve["environment"]["VLLM_LORA_RESOLVER_CACHE_DIR"]] == "${MOTET_ADAPTERS:-./adapters}"
    assert all(volume.endswith(":ro") for volume in serve["volumes"])
    (script,) = serve["command"]
    assert "MOTET_SERVE_BASE" in serve["environment"]
    without = subprocess.run(
        ["/bin/sh", "-c", script.replace("$$", "$")], capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert without.returncode != 0
    assert "set MOTET_SERVE_BASE to the name of a base" in without.stderr
    (port,) = serve["ports"]
    assert port.startswith("${MOTET_SERVE_ADDRESS:-127.0.0.1:"), "who may ask it may make it load folders"
    assert port.endswith(":8000")
    assert " --port 8000 " in script


@pytest.mark.parametrize("name", ["worker", "serve"])
def test_what_computes_reserves_gpus(name: str) -> None:
    (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
