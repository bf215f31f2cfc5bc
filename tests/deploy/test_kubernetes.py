"""The Helm chart: its objects by Kubernetes' own schemas, and by what the code reads, listens on and runs."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from contract.compatibility.version import VERSION
from deploy.kubernetes.chart import CHART, render_chart
from service.__main__ import _COMMANDS
from service.settings import Settings
from tests.deploy.chart_objects import (
    BACKUPS,
    CASES,
    EVERYTHING,
    PLAIN,
    containers,
    env_of,
    find,
    objects,
)
from tests.deploy.settings_variables import secret_variables, text_variables, variables
from worker.settings import Settings as WorkerSettings

KUBERNETES = "1.33"


def test_the_plain_form_is_the_chart_with_its_default_values() -> None:
    made = subprocess.run([sys.executable, "-m", "deploy.kubernetes"], check=True, capture_output=True, text=True).stdout
    assert made == PLAIN.read_text(), "run: python -m deploy.kubernetes > deploy/kubernetes/motet.yaml"


@CASES
def test_every_object_holds_to_kubernetes_own_schemas(values: Mapping[str, Any]) -> None:
    made = objects(values)
    assert len(made) >= 10
    for it in made:
        kubernetes_validate.validate(it, KUBERNETES, strict=True)
    names = [(it["kind"], it["metadata"]["name"]) for it in made]
    assert len(names) == len(set(names))


@CASES
def test_pods_run_without_privileges(values: Mapping[str, Any]) -> None:
    for name, container, pod in containers(values):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True, name
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert {"requests", "limits"} <= container["resources"].keys(), name
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claims = {claim["metadata"]["name"] for it in objects(values) for claim in it["spec"].get("volumeClaimTemplates", [])}
        assert mounted <= {volume["name"] for volume in pod["volumes"]} | claims, name


@CASES
def test_variables_are_those_of_the_code(values: Mapping[str, Any]) -> None:
    service, worker = variables(Settings), variables(WorkerSettings)
    seen = 0
    for name, container, _ in containers(values):
        known = worker if name.endswith("-worker") else service
        given = {key for key in env_of(container) if key.startswith(("MOTET_", "HF_"))}
        assert given <= known, f"{name}: {sorted(given - known)}"
        seen += len(given)
    assert seen >= 40


def test_every_secret_setting_can_come_from_a_secret_and_every_text_is_a_value() -> None:
    """`env` of the values is plain text, so it is no place for a secret; numbers and switches may be left to it."""
    given, secret = set[str](), set[str]()
    for values in CASES.args[1]:
        for _, container, _ in containers(values):
            given |= env_of(container).keys()
            secret |= {one["name"] for one in container.get("env", []) if "valueFrom" in one}
    for settings in (Settings, WorkerSettings):
        assert secret_variables(settings) <= secret
    assert text_variables(Settings) - given == {
        *("MOTET_STORAGE_MOVE_TO", "MOTET_BACKUP_NAME"),  # of commands that an operator runs by hand
        *("MOTET_DOWNLOAD_OFFLOAD", "MOTET_PG_PROGRAMS", "MOTET_CURRENCY"),
    }


@CASES
def test_settings_accept_what_the_chart_gives(values: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, container, _ in containers(values):
        env = env_of(container)
        given = [one["name"] for one in container.get("env", []) if "valueFrom" in one]
        secrets = {key: f"{index:02d}" + "0123456789abcdef" * 4 for index, key in enumerate(given)}
        if "MOTET_NODE_NAME" in env:
            secrets["MOTET_NODE_NAME"] = "motet-worker-0"
        if any(key.startswith("MOTET_") for key in env):
            with monkeypatch.context() as patch:
                if "MOTET_SMTP_URL" in secrets:
                    secrets["MOTET_SMTP_URL"] = "smtp+starttls://user:password@smtp.example.com"
                if "MOTET_OTLP_HEADERS" in secrets:
                    secrets["MOTET_OTLP_HEADERS"] = "authorization=Bearer 0123456789abcdef"
                if "MOTET_AUTOSCALING_SECRETS" in secrets:
                    secrets["MOTET_AUTOSCALING_SECRETS"] = "whsec_" + "QUJD" * 8
                for key, value in (env | secrets).items():
                    patch.setenv(key, expanded(value, secrets))
                settings = WorkerSettings.load() if name.endswith("-worker") else Settings.load()
                assert settings.redis_url is not None


def expanded(value: str, given: Mapping[str, str]) -> str:
    """`value` with each $(NAME) replaced, as the kubelet does."""
    return re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], value)


@CASES
def test_commands_ports_and_probes_exist(values: Mapping[str, Any]) -> None:
    made = objects(values)
    started = set()
    for _, container, _ in containers(values):
        started |= set(re.findall(r"-m service (\w+)|-m worker", " ".join(container.get("command", []))))
    backups = {"backup"} if values is BACKUPS else set()
    assert started == {"api", "queue", "reconcile", "migrate", "bootstrap", ""} | backups
    assert started - {""} <= _COMMANDS.keys()
    ports = {
        port["name"]: port["containerPort"] for _, container, _ in containers(values) for port in container.get("ports", [])
    }
    for it in made:
        if it["kind"] == "Service":
            assert {port["targetPort"] for port in it["spec"].get("ports", [])} <= ports.keys()
    api = find("Deployment", "motet-api", values)["spec"]["template"]["spec"]["containers"][0]
    env = env_of(api)
    assert (str(ports["public"]), str(ports["internal"])) == (env["MOTET_PORT"], env["MOTET_INTERNAL_PORT"])
    worker = find("StatefulSet", "motet-worker", values)["spec"]["template"]["spec"]["containers"][0]
    assert env_of(worker)["MOTET_API_URL"] == f"http://motet-internal:{env['MOTET_INTERNAL_PORT']}"
    assert ("MOTET_TRANSFER_PORT" in env) == ("transfers" in ports) == ("MOTET_STORAGE_DIR" in env)
    assert str(ports.get("transfers", "")) == env.get("MOTET_TRANSFER_PORT", "")


def test_a_program_that_hangs_is_started_again(tmp_path: Path) -> None:
    """Each program that runs on has a liveness probe; one without a port is judged by the age of the file that it touches."""
    judged = set()
    kept = {it["metadata"]["name"] for it in objects() if it["kind"] in ("Deployment", "StatefulSet")}
    for name, container, _ in containers():
        if name in kept:
            assert "livenessProbe" in container, name
            if (file := env_of(container).get("MOTET_LIVENESS_FILE")) is not None:
                assert Path(file).parent.as_posix() in {mount["mountPath"] for mount in container["volumeMounts"]}, name
                command = container["livenessProbe"]["exec"]["command"]
                own = tmp_path / name
                for minutes, lives in ((None, False), (0, True), (60, False)):
                    if minutes is not None:
                        own.touch()
                        os.utime(own, (time.time() - 60 * minutes,) * 2)
                    asked = [word.replace(file, str(own)) for word in command]
                    assert (subprocess.run(asked, stderr=subprocess.DEVNULL).returncode == 0) == lives, (name, minutes)
                judged.add(name)
    assert judged == {"motet-queue", "motet-reconcile", "motet-worker"}


def test_selectors_find_their_pods() -> None:
    pods = [it["spec"]["template"]["metadata"]["labels"] for it in objects() if "template" in it["spec"]]
    for it in objects():
        selector = (
            it["spec"].get("selector", {})
            if it["kind"] in ("Service", "PodDisruptionBudget", "Deployment", "StatefulSet")
            else {}
        )
        wanted = selector.get("matchLabels", selector)
        if wanted:
            assert sum(wanted.items() <= labels.items() for labels in pods) == 1, it["metadata"]["name"]


def test_only_workers_reach_the_internal_port() -> None:
    public, internal = find("NetworkPolicy", "motet-api")["spec"]["ingress"]
    assert (public["ports"][0]["port"], "from" in public) == ("public", False)
    assert [port["port"] for port in internal["ports"]] == ["internal", "transfers"]
    (only,) = internal["from"]
    assert only["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    narrowed = find("NetworkPolicy", "motet-api", EVERYTHING)["spec"]["ingress"][0]["from"]
    assert [list(one["namespaceSelector"]["matchLabels"].values()) for one in narrowed] == [["ingress-nginx"], ["research"]]


def test_versions_agree() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = yaml.safe_load((CHART / "values.yaml").read_text())["images"]
    assert {about["version"], about["appVersion"]} == {VERSION}
    assert {images[name].rpartition(":")[2] for name in ("service", "worker")} == {VERSION}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Motet", {}, "release's name"),
        ("motet", {"apis": {}}, "no value apis"),
        ("motet", {"api": {"replica": 3}}, "no value api.replica"),
        ("motet", {"env": {"MOTET_MAX_FILE_BYTES": 5_000_000_000}}, "quote it"),
    ],
)
def test_wrong_values_are_refused_in_words(name: str, values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_chart(name, [values])


def test_a_values_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("- 3\n")
    asked = [sys.executable, "-m", "deploy.kubernetes", "--values", str(tmp_path / "values.yaml")]
    ended = subprocess.run(asked, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "must hold a mapping" in ended.stderr
