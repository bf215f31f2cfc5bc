"""Limits of the service that a machine which stands still for a while would reach: for each test they are longer than that."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

import pytest

from service.database import engine
from service.http.outbound import Outbound
from service.hub.hub_client import Hub
from tests.service.live_server import PATIENCE

_LONG = 3600.0  # seconds
_LIMITS: Mapping[str, float | timedelta] = {
    "service.http.outbound._RESOLVE_SECONDS": PATIENCE,
    "service.autoscaling.webhook._CALL_SECONDS": PATIENCE,
    "service.files.imports.importer._SILENT_SECONDS": PATIENCE,
    "service.fleet.base_models.copies.base_copier._SILENT_SECONDS": PATIENCE,
    "service.tracing.span_exporter._CALL_SECONDS": _LONG,
    "service.webhooks.courier._HELD": timedelta(seconds=_LONG),
    "service.webhooks.courier._SLOW_SECONDS": _LONG,
    "service.mirrors.mirror_claims.HELD": timedelta(seconds=_LONG),
    "service.mirrors.mirror_courier._SLOW_SECONDS": _LONG,
    "service.mirrors.mirror_visit.VISIT_SECONDS": _LONG,
    "service.mirrors.mlflow_client._SEARCH_SECONDS": _LONG,
    "service.mirrors.tracking_servers._CALL_SECONDS": PATIENCE,
    "service.oidc.provider._SECONDS": PATIENCE,
    "service.completions.answers.CLAIM_SECONDS": _LONG,
    "service.completions.executor_claims.CLAIM_SECONDS": _LONG,
    "service.completions.following.ASKER_SECONDS": _LONG,
    "service.completions.requests.ASKER_SECONDS": _LONG,
    "service.tenants.rate_limits._SLICE_SECONDS": _LONG,
}


@pytest.fixture(scope="session", autouse=True)
def patient_connects() -> Iterator[None]:
    """Of this process to Postgres, whose engines last for a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engine.CONNECT, "connect_timeout", int(PATIENCE))
        yield


@pytest.fixture(autouse=True)
def patient_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; processes that a test starts have the service's own."""
    monkeypatch.setattr(Outbound.__init__, "__defaults__", ((), PATIENCE))
    monkeypatch.setattr(Hub.__init__, "__defaults__", (PATIENCE,))
    for name, limit in _LIMITS.items():
        monkeypatch.setattr(name, limit)
