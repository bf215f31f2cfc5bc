"""Calls about base models, nodes and the schedule."""

from pathlib import Path
from typing import Any

from motet.api.resources import Autoscaling, HubModel, JoinToken, Model, NewestBackup, Node, Schedule, Storage
from motet.api.steps import Listing, Operation, at, change, entries, gathered, get, make, one, pages, validated

_HUB_SECONDS = 60.0  # longer than the service waits for the hub


def models() -> Listing[Model]:
    """The base models that tasks may name."""
    return entries(Model, "/v1/models")


def model(name: str) -> Operation[Model]:
    """A base model."""
    return one(Model, get(at("/v1/models/{}", name, nested=True)))


def schedule() -> Operation[Schedule]:
    """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
    first, *others = yield from gathered(pages("/v1/schedule"))
    whole: dict[str, Any] = dict(first)
    for page in others:
        whole["nodes"] = whole["nodes"] + page["nodes"]
        whole["waiting"] = whole["waiting"] + page["waiting"]
    return validated(Schedule, whole, "/v1/schedule")


def ready() -> Operation[None]:
    """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
    yield from get("/readyz")


def register_model(name: str, source: str | Path) -> Operation[Model]:
    """Allow a base model: `source` is a folder that every node has. Its current revision is pinned."""
    return one(Model, make("/v1/admin/models", json={"name": name, "source": str(source)}))


def add_model(source: str, revision: str = "main", name: str | None = None, dry_run: bool = False) -> Operation[HubModel]:
    """Allow a base model of the hub: `source` is hf://organisation/name, whose revision is pinned to a commit. `dry_run`: only
    tell its files, licence and whether it fits the fleet's GPUs."""
    said = {"source": source, "revision": revision, "dry_run": dry_run} | ({"name": name} if name is not None else {})
    return one(HubModel, make("/v1/models", json=said, seconds=_HUB_SECONDS))


def storage() -> Operation[Storage]:
    """Where the service keeps objects, and whether it can: it tries."""
    return one(Storage, get("/v1/admin/storage"))


def newest_backup() -> Operation[NewestBackup]:
    """When the newest backup was taken."""
    return one(NewestBackup, get("/v1/admin/newest-backup"))


def nodes() -> Listing[Node]:
    """The machines of the fleet."""
    return entries(Node, "/v1/admin/nodes")


def autoscaling() -> Operation[Autoscaling]:
    """GPUs that the queue asks for beyond what is free, and nodes that are idle: what the autoscaling webhook is told."""
    return one(Autoscaling, get("/v1/admin/autoscaling"))


def drain(node_id: str, evict: bool = False) -> Operation[Node]:
    """Let the node take nothing new; with `evict`, its tasks leave too, each once its jobs are safe."""
    return one(Node, change("POST", at("/v1/admin/nodes/{}/drain", node_id), {"evict": evict}))


def undrain(node_id: str) -> Operation[Node]:
    """Let a drained or quarantined node take tasks again."""
    return one(Node, change("POST", at("/v1/admin/nodes/{}/undrain", node_id)))


def remove_node(node_id: str) -> Operation[Node]:
    """Remove a node that is lost or stopped. It joins again with a join token; what ran there stays readable."""
    return one(Node, change("DELETE", at("/v1/admin/nodes/{}", node_id)))


def create_join_token(node_name: str, expires_in_seconds: int | None = None) -> Operation[JoinToken]:
    """A token with which a node of this name joins, once; with a name such as gpu-*, all that begin so, until it expires."""
    given = {"expires_in_seconds": expires_in_seconds} if expires_in_seconds is not None else {}
    return one(JoinToken, make("/v1/admin/join-tokens", json={"node_name": node_name} | given))
