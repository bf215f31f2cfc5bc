"""Calls about tracking servers, to which specs' `integrations` mirror tasks."""

from collections.abc import Mapping
from typing import Any

from motet.api.resources import TrackingServer
from motet.api.steps import Listing, Operation, at, change, entries, get, make, one, remove


def create(
    name: str, type: str = "mlflow", url: str | None = None, credentials: Mapping[str, str] | None = None
) -> Operation[TrackingServer]:
    """Add a server. credentials: `{"api_key": …}` for type wandb, whose url may be left out; `{"token": …}`, or `username` with
    `password`, for mlflow."""
    said = {"type": type, "name": name, "url": url, "credentials": credentials}
    return one(
        TrackingServer, make("/v1/tracking-servers", json={key: value for key, value in said.items() if value is not None})
    )


def tracking_server(server_id: str) -> Operation[TrackingServer]:
    """One server."""
    return one(TrackingServer, get(at("/v1/tracking-servers/{}", server_id)))


def tracking_servers() -> Listing[TrackingServer]:
    """The tenant's servers, newest first."""
    return entries(TrackingServer, "/v1/tracking-servers")


def change_server(server_id: str, **changes: Any) -> Operation[TrackingServer]:
    """Change `url` or `credentials`; without either, mirrors that were given up are tried again."""
    return one(TrackingServer, change("PATCH", at("/v1/tracking-servers/{}", server_id), changes))


def delete_server(server_id: str) -> Operation[None]:
    """Delete a server. Its tasks train on; what is there stays there."""
    yield from remove(at("/v1/tracking-servers/{}", server_id))
