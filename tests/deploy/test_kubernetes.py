"""The Helm chart: its objects by Kubernetes' own schemas, and by what the code reads, listens on and runs."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from contract.compatibility.version import VERSION
from deploy.kubernetes.chart import CHART, render_chart
from service.__main__ import _COMMANDS
from service.settings import Settings
from worker.settings import Settings as WorkerSettings

PLAIN = CHART.parent / "motet.yaml"


KUBERNETES = "1.33"


EVERYTHING: Mapping[str, Any] = {
    "api": {
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"cert-manager.io/cluster-issuer": "ours"}},
    },
    "images": {"pullSecrets": [{"name": "registry"}]},
    "networkPolicies": {"callers": ["ingress-nginx", "research"]},
    "storage": {"storageClass": "shared"},
    "workers": {
        "replicas": 3,
        "runtimeClass": "nvidia",
        "nodeSelector": {"gpu": "h200"},
        "env": {"MOTET_WORKER_MOMENTS": "8bit"},
    },
    "env": {"MOTET_RETENTION_DAYS": "14"},
}


OWN_SERVERS: Mapping[str, Any] = {
    "postgres": {"bundled": False, "host": "db.internal", "sslmode": "require"},
    "valkey": {"bundled": False, "host": "cache.internal", "tls": True},
    "storage": {"existingClaim": "ours"},
    "networkPolicies": {"enabled": False},
    "workers": {"gpus": 0},
}


A_BUCKET: Mapping[str, Any] = {
    "storage": {
        "url": "s3://models/motet",
        "endpoint": "http://minio.storage:9000",
        "publicEndpoint": "https://objects.example.com",
        "region": "eu-central-1",
        "encryption": "aws:kms",
        "kmsKey": "alias/motet",
        "credentialsSecret": "bucket",
        "accessMode": "ReadWriteOnce",
        "size": "1Gi",
    }
}


A_HUB: Mapping[str, Any] = {
    "models": {"existingClaim": None},
    "hub": {"endpoint": "https://hub.internal", "tokenSecret": "hub"},
}


BACKUPS: Mapping[str, Any] = {"backup": {"url": "file:///backups", "existingClaim": "backups", "kept": 7}}


SIGN_IN: Mapping[str, Any] = {
    "oidc": {
        "issuer": "https://id.example.com",
        "clientSecret": "oidc",
        "name": "Example ID",
        "publicUrl": "https://motet.example.com",
    }
}


CASES = pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, OWN_SERVERS, A_BUCKET, A_HUB, BACKUPS, SIGN_IN],
    ids=["default", "everything", "own servers", "a bucket", "a hub", "backups", "sign-in"],
)


def objects(values: Mapping[str, Any] | None = None, name: str = "motet") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render_chart(name, [values or {}])))


def find(kind: str, name: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    (found,) = [it for it in objects(values) if (it["kind"], it["metadata"]["name"]) == (kind, name)]
    return found


def containers(values: Mapping[str, Any] | None = None) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each container with its workload's name and its pod's spec."""
    for it in objects(values):
        if it["kind"] in ("Deployment", "StatefulSet", "Job", "CronJob"):
            pod = it["spec"].get("jobTemplate", it)["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield it["metadata"]["name"], container, pod


def env_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container.get("env", [])}


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


def variables(settings: type[Settings] | type[WorkerSettings]) -> set[str]:
    return {str(field.validation_alias or "MOTET_" + name.upper()) for name, field in settings.model_fields.items()}


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


def test_with_a_bucket_only_the_first_keys_need_a_claim() -> None:
    for name in ("api", "queue", "reconcile"):
        pod = find("Deployment", f"motet-{name}", A_BUCKET)["spec"]["template"]["spec"]
        given = env_of(pod["containers"][0])
        assert {volume["name"]: volume for volume in pod["volumes"]}["storage"] == {"name": "storage", "emptyDir": {}}
        assert given["MOTET_STORAGE_URL"] == "s3://models/motet"
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= given.keys()
        assert "MOTET_STORAGE_DIR" not in given
    job = find("Job", "motet-migrate", A_BUCKET)["spec"]["template"]["spec"]
    assert "persistentVolumeClaim" in {volume["name"]: volume for volume in job["volumes"]}["storage"]
    assert "AWS_ACCESS_KEY_ID" not in str(find("StatefulSet", "motet-worker", A_BUCKET)), "workers get presigned URLs"


def test_with_a_hub_no_folder_of_bases_is_mounted_and_its_token_reaches_api_and_workers_alone() -> None:
    tokens = {name for name, container, _ in containers(A_HUB) if "HF_TOKEN" in env_of(container)}
    assert tokens == {"motet-api", "motet-worker"}
    for name, container, pod in containers(A_HUB):
        assert "models" not in {volume["name"] for volume in pod["volumes"]}, name
        if name in tokens:
            assert env_of(container)["HF_ENDPOINT"] == "https://hub.internal"


def test_who_signs_people_in_is_told_to_the_service_alone() -> None:
    assert "OIDC" not in render_chart("motet", [{}])
    told = {name for name, container, _ in containers(SIGN_IN) if "MOTET_OIDC_ISSUER" in env_of(container)}
    assert {"motet-api", "motet-queue", "motet-reconcile"} <= told
    assert "OIDC" not in str(find("StatefulSet", "motet-worker", SIGN_IN))


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


def test_each_worker_may_join_under_its_pods_name() -> None:
    migrate = find("Job", "motet-migrate", EVERYTHING)["spec"]["template"]["spec"]["containers"][0]
    assert env_of(migrate)["MOTET_JOIN_NODES"] == "motet-worker-0,motet-worker-1,motet-worker-2"


def test_only_workers_reach_the_internal_port() -> None:
    public, internal = find("NetworkPolicy", "motet-api")["spec"]["ingress"]
    assert (public["ports"][0]["port"], "from" in public) == ("public", False)
    assert internal["ports"][0]["port"] == "internal"
    (only,) = internal["from"]
    assert only["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    narrowed = find("NetworkPolicy", "motet-api", EVERYTHING)["spec"]["ingress"][0]["from"]
    assert [list(one["namespaceSelector"]["matchLabels"].values()) for one in narrowed] == [["ingress-nginx"], ["research"]]


def test_the_migration_comes_before_the_programs_where_the_database_is_there_already() -> None:
    hook = "helm.sh/hook"
    assert find("Job", "motet-migrate", OWN_SERVERS)["metadata"]["annotations"][hook] == "pre-install,pre-upgrade"
    assert find("Job", "motet-migrate")["metadata"]["annotations"][hook] == "post-install,pre-upgrade"


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


def test_backups_are_taken_one_at_a_time_by_the_database_owner() -> None:
    assert not [it for it in objects() if it["kind"] == "CronJob"], "none unless a place for them is named"
    job = find("CronJob", "motet-backup", BACKUPS)["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("17 2 * * *", "Forbid")
    pod = job["jobTemplate"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = env_of(container)
    assert container["command"] == ["python", "-m", "service", "backup"]
    assert (given["MOTET_BACKUP_URL"], given["MOTET_BACKUPS_KEPT"]) == ("file:///backups", "7")
    assert given["MOTET_OWNER_DATABASE_URL"].startswith("postgresql+psycopg://motet:$(POSTGRES_PASSWORD)@")
    assert {"/backups", "/var/lib/motet"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    own = {"app.kubernetes.io/component": "backup"}.items()
    assert own <= pod["metadata"]["labels"].items()
    (rule,) = find("NetworkPolicy", "motet-postgres", BACKUPS)["spec"]["ingress"][0]["from"]
    assert "backup" in rule["podSelector"]["matchExpressions"][0]["values"]
