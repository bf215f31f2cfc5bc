"""Calls about merged models: adapters added to their bases."""

from pathlib import Path

from motet.api.errors import MergedModelNotReady
from motet.api.operations.adapters import fetch_folder
from motet.api.resources import MergedModel
from motet.api.steps import Listing, Operation, at, awaited, entries, followed, get, make, one, remove


def create(adapter_id: str, max_shard_bytes: int | None = None) -> Operation[MergedModel]:
    """Have the adapter added to its base; `wait` has the model once it is ready."""
    said = {"adapter_id": adapter_id} | ({"max_shard_bytes": max_shard_bytes} if max_shard_bytes is not None else {})
    return one(MergedModel, make("/v1/merged-models", json=said))


def merged_model(merged_id: str) -> Operation[MergedModel]:
    """How far the merge is, and the files that are stored."""
    return one(MergedModel, get(at("/v1/merged-models/{}", merged_id)))


def merged_models() -> Listing[MergedModel]:
    """The tenant's merged models, newest first."""
    return entries(MergedModel, "/v1/merged-models")


def follow(merged_id: str) -> Listing[MergedModel]:
    """The merge now and at each look, until it is ready or has failed."""
    return followed(lambda: merged_model(merged_id), _ended)


def wait(merged_id: str, timeout: float | None = None) -> Operation[MergedModel]:
    """The model once it is ready. Raises MergedModelNotReady where it failed, or after `timeout` seconds."""
    found, ended = yield from awaited(follow(merged_id), _ended, timeout)
    if not ended:
        why = f": {found.waits_for}" if found.waits_for else f", {len(found.files)} files so far"
        raise MergedModelNotReady(f"{merged_id} is {found.status} after {timeout:g} s{why}")
    if found.status == "failed":
        raise MergedModelNotReady(f"{merged_id} could not be merged: {found.error}")
    return found


def download(merged_id: str, folder: str | Path) -> Operation[Path]:
    """Write the model's files to `folder`, which must not exist yet or be empty. Returns the folder.

    Raises DownloadDamaged where a sha256 differs, MergedModelNotReady before it is ready, MotetError where `folder` holds
    something else.
    """
    found = yield from merged_model(merged_id)
    if found.status != "ready":
        raise MergedModelNotReady(f"{merged_id} is {found.status}; wait until it is ready")
    return (yield from fetch_folder("merged-models", found.id, found.files, Path(folder)))


def delete_merged_model(merged_id: str) -> Operation[None]:
    """Delete the model's files for good, or give up its merge. The adapter stays."""
    yield from remove(at("/v1/merged-models/{}", merged_id))


def _ended(merged: MergedModel) -> bool:
    return merged.status in ("ready", "failed")
