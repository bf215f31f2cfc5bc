"""/metrics for Prometheus, readable with an admin key or with the metrics token."""

import hmac
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0 as TEXT

from service.app_state import Service, SystemDb
from service.authentication import Bearer, authenticate, require_scope
from service.http.response_schemas import problems
from service.metrics.fleet_metrics import FleetMetrics
from service.tenants.api_keys import Scope

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


async def _scraper(request: Request, bearer: Bearer, service: Service) -> None:
    """Raise unless the caller may read the metrics."""
    token = service.settings.metrics_token
    given = bearer.credentials if bearer is not None else ""
    if token is None or not hmac.compare_digest(given.encode(), token.get_secret_value().encode()):
        require_scope(Scope.ADMIN, await authenticate(request, bearer))


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Measurements for Prometheus",
    dependencies=[Depends(_scraper)],
    response_class=Response,
    responses=_TEXT | problems(401, 403, 503),
)
def metrics(service: Service, db: SystemDb) -> Response:
    service.measure()
    registry = CollectorRegistry()
    with db.begin() as session:
        registry.register(FleetMetrics(session, service.settings))
        fleet_exposition = generate_latest(registry)
    return Response(service.metrics.exposition() + fleet_exposition, media_type=TEXT)
