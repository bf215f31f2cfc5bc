"""Calls about pushes to the hub: adapters and merged models, committed to a repository there."""

from typing import Any

from motet.api.errors import HubPushFailed
from motet.api.resources import HubPush
from motet.api.steps import Listing, Operation, at, awaited, entries, followed, get, make, one, remove


def create(
    id: str,
    repository: str,
    token: str,
    revision: str | None = None,
    private: bool | None = None,
    message: str | None = None,
    base_model: str | None = None,
) -> Operation[HubPush]:
    """Push an adapter or a merged model, by its id, to `organisation/name` on the hub; `wait` has it once it is there.

    token: of the hub, with the right to write there. revision: a branch. private: left out, a repository that is made is
    private, and a public one is refused. base_model: of an adapter, its base's name on the hub, for the model card.
    """
    more = {"revision": revision, "private": private, "message": message, "base_model": base_model}
    what = "merged_model_id" if id.startswith("merged_") else "adapter_id"
    said: dict[str, Any] = {what: id, "repository": repository, "token": token}
    said |= {name: value for name, value in more.items() if value is not None}
    return one(HubPush, make("/v1/hub-pushes", json=said))


def hub_push(push_id: str) -> Operation[HubPush]:
    """How far the push is, and its commit."""
    return one(HubPush, get(at("/v1/hub-pushes/{}", push_id)))


def hub_pushes() -> Listing[HubPush]:
    """The tenant's pushes, newest first."""
    return entries(HubPush, "/v1/hub-pushes")


def follow(push_id: str) -> Listing[HubPush]:
    """The push now and at each look, until it has succeeded or failed."""
    return followed(lambda: hub_push(push_id), _ended)


def wait(push_id: str, timeout: float | None = None) -> Operation[HubPush]:
    """The push once it is on the hub. Raises HubPushFailed where it failed, or after `timeout` seconds."""
    found, ended = yield from awaited(follow(push_id), _ended, timeout)
    why = f": {found.error.detail}" if found.error is not None else ""
    if not ended:
        raise HubPushFailed(f"{push_id} is {found.status} after {timeout:g} s, {found.sent_bytes} bytes so far{why}")
    if found.status == "failed":
        raise HubPushFailed(f"{push_id} could not be pushed{why}")
    return found


def delete_hub_push(push_id: str) -> Operation[None]:
    """Forget the push; one that has not ended is given up. What was committed stays on the hub."""
    yield from remove(at("/v1/hub-pushes/{}", push_id))


def _ended(push: HubPush) -> bool:
    return push.status in ("succeeded", "failed")
