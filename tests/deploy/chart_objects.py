"""The objects that the chart makes of values, and the values that its tests try."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from deploy.kubernetes.chart import CHART, render_chart

PLAIN = CHART.parent / "motet.yaml"


EVERYTHING: Mapping[str, Any] = {
    "api": {
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"cert-manager.io/cluster-issuer": "ours"}},
    },
    "images": {"pullSecrets": [{"name": "registry"}]},
    "networkPolicies": {"callers": ["ingress-nginx", "research"]},
    "storage": {"storageClass": "shared"},
    "workers": {
        "hostsSecret": "hosts",
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
    },
    "serviceAccount": "motet-storage",
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


MAIL: Mapping[str, Any] = {
    "smtp": {"secret": "mail", "from": "motet@example.com"},
    "secretKeysBefore": "before",
}


SCALER: Mapping[str, Any] = {"nodeAutoscaling": {"url": "http://scaler.infra:8080/motet", "secret": "scaler"}}


TRACES: Mapping[str, Any] = {"tracing": {"endpoint": "http://otel-collector.observability:4318", "headersSecret": "collector"}}


CASES = pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, OWN_SERVERS, A_BUCKET, A_HUB, BACKUPS, SIGN_IN, MAIL, SCALER, TRACES],
    ids=["default", "everything", "own servers", "a bucket", "a hub", "backups", "sign-in", "mail", "autoscaling", "traces"],
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
