"""Calls about base models, nodes and the schedule."""

import hashlib
import json
from pathlib import Path
from typing import Any

from contract.messages.placement_messages import SMALL_FILES, TEMPLATES
from motet.api.errors import MotetError
from motet.api.received_answers import contents, validated
from motet.api.resources import Autoscaling, HubModel, JoinToken, Model, NewestBackup, Node, Schedule, Storage
from motet.api.steps import Listing, Operation, ask, at, change, entries, gathered, get, make, one, pages, put, remove

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
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


def add_model(
    source: str, revision: str = "main", name: str | None = None, dry_run: bool = False, store: bool | None = None
) -> Operation[HubModel]:
    """Allow a base model of the hub: `source` is hf://organisation/name, whose revision is pinned to a commit. `dry_run`: only
    tell its files, licence and whether it fits the fleet's GPUs. `store`: copy its files to storage, from which nodes fetch it
    then; None: as it is."""
    said: dict[str, Any] = {"source": source, "revision": revision, "dry_run": dry_run}
    said |= {key: value for key, value in (("name", name), ("store", store)) if value is not None}
    return one(HubModel, make("/v1/models", json=said, seconds=_HUB_SECONDS))


def upload_model(folder: str | Path, name: str) -> Operation[Model]:
    """Upload a base model from a folder of this machine to storage, from which nodes fetch it, and allow it. Files that storage
    holds already are not sent again. Raises MotetError if the folder cannot be read."""
    folder = Path(folder)
    try:
        files = base_files(folder)
        found = contents((yield from ask("/v1/admin/model-files", {"files": files})))
        for file in files:
            if file["sha256"] in found["sha256"]:
                yield from put(at("/v1/admin/model-files/{}", str(file["sha256"])), folder / str(file["path"]))
    except OSError as error:
        raise MotetError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    allowed = make("/v1/admin/stored-models", json={"name": name, "files": files}, seconds=_HUB_SECONDS)
    return (yield from one(Model, allowed))


def base_files(folder: Path) -> list[dict[str, str | int]]:
    """Path, sha256 and bytes of the files of a base model in this folder: the weights as safetensors, as its index names them,
    and the small files beside them that are known. Reads every byte. Raises MotetError where there is no model, and OSError."""
    index = folder / _INDEX
    if index.is_file():
        try:
            weights = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MotetError(f"{index} is damaged") from None
    else:
        weights = [_WHOLE]
    if not all(isinstance(path, str) and (folder / path).is_file() for path in weights):
        raise MotetError(f"{folder} holds no model: neither {_WHOLE}, nor {_INDEX} with the files that it names")
    templates = (f"{TEMPLATES}/{path.name}" for path in sorted((folder / TEMPLATES).glob("*.jinja")))
    paths = [*(path for path in (*SMALL_FILES, _INDEX, *templates) if (folder / path).is_file()), *weights]
    return [_described(folder, path) for path in paths]


def _described(folder: Path, path: str) -> dict[str, str | int]:
    with (folder / path).open("rb") as content:
        return {
            "path": path,
            "sha256": hashlib.file_digest(content, "sha256").hexdigest(),
            "bytes": (folder / path).stat().st_size,
        }


def remove_model(name: str) -> Operation[None]:
    """Take a base model off the list; its files go from storage. Raises ApiError (`revision_in_use`) while tasks need it."""
    yield from remove(at("/v1/admin/models/{}", name, nested=True))


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
