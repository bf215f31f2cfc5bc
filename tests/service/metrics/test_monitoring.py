"""Alert rules and the Grafana dashboard read only what /metrics emits, and each alert has its section in the documents."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = [
    rule for group in yaml.safe_load((MONITORING / "prometheus_rules.yaml").read_text())["groups"] for rule in group["rules"]
]
PANELS = json.loads((MONITORING / "grafana_dashboard.json").read_text())["panels"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.fixture
def emitted(admin: Any, tenant: Any) -> dict[str, set[str]]:
    """Every sample's name with its labels' names, after a task was posted and a request answered."""
    tenant.post(f"/v1/tasks/{tenant.task()['id']}/cancel")
    names: dict[str, set[str]] = {}
    admin.get("/metrics")
    for family in text_string_to_metric_families(admin.get("/metrics").text):
        # families without samples yet, such as nodes of an empty fleet
        names.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def test_they_read_only_what_is_emitted(emitted: dict[str, set[str]]) -> None:
    for expression in EXPRESSIONS:
        for name, labels in re.findall(r"(motet_\w+)(?:\{([^}]*)\})?", expression):
            assert name in emitted, expression
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))
            assert not emitted[name] or used <= emitted[name], expression


def test_every_metric_of_the_fleet_is_on_the_dashboard_or_in_an_alert(emitted: dict[str, set[str]]) -> None:
    read = set(re.findall(r"motet_\w+", " ".join(EXPRESSIONS)))
    families = {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in emitted if name.startswith("motet_")}
    unread = families - {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in read}
    assert unread == {"motet_jobs", "motet_scheduler_requests", "motet_executor_steps", "motet_executor_forwards"}


def test_each_alert_has_its_runbook() -> None:
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "OPERATIONS.md").read_text(), re.MULTILINE))
    assert [rule["alert"] for rule in RULES] == sorted({rule["alert"] for rule in RULES}, key=[r["alert"] for r in RULES].index)
    assert {rule["alert"] for rule in RULES} == headings
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/OPERATIONS.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "warn")


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
