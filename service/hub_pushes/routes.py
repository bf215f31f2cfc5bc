"""Routes of pushes to the hub: ask for one, list, describe, delete."""

from fastapi import APIRouter

from contract.messages.adapter_manifest import AdapterFile
from service.adapters.adapter_readme import NAME
from service.app_state import Config, HubDep, Store
from service.authentication import Db, Reader, Writer
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.hub_pushes import push_requests
from service.hub_pushes.models import HubPush
from service.hub_pushes.push_requests import NewHubPush
from service.hub_pushes.resource import HubPushResource
from service.idempotency.repeated_requests import ClaimedKey
from service.storage.object_store import Storage

router = APIRouter(prefix="/v1/hub-pushes", tags=["hub pushes"], responses=problems(401, 403))


@router.post(
    "",
    status_code=201,
    operation_id="create_hub_push",
    summary="Push an adapter or a merged model to the hub",
    description=(
        "The service commits the files, with a model card, to a repository of its hub (`HF_ENDPOINT`), in the "
        "background and in one commit. What the hub has is not sent again. Poll it until its `status` is `succeeded` or "
        "`failed`. The adapter may be deleted meanwhile."
    ),
    responses=problems(404, 409, 422),
)
def create_hub_push(
    new: NewHubPush, writer: Writer, db: Db, hub: HubDep, storage: Store, settings: Config, claim: ClaimedKey
) -> HubPushResource:
    hub.check_online()
    push_requests.check(new)
    with db.begin() as session:
        text = push_requests.card_of(session, writer, new)
    card = _stored(storage, text) if text is not None else None
    with db.begin() as session:
        made = push_requests.begin(session, writer, new, card, hub.endpoint, push_requests.box_of(settings))
        resource = HubPushResource.of(made)
        claim.store_answer(session, 201, resource, {})
    return resource


@router.get("", operation_id="list_hub_pushes", summary="List pushes to the hub, the newest first", responses=problems(422))
def list_hub_pushes(reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[HubPushResource]:
    with db.begin() as session:
        own = push_requests.pushes_of(reader)
        return page(session, own, HubPush, cursor, limit, lambda rows: [HubPushResource.of(row) for row in rows])


@router.get("/{push_id}", operation_id="get_hub_push", summary="Get a push to the hub", responses=problems(404))
def get_hub_push(push_id: str, reader: Reader, db: Db) -> HubPushResource:
    with db.begin() as session:
        return HubPushResource.of(push_requests.find_push(session, reader, push_id))


@router.delete(
    "/{push_id}",
    status_code=204,
    operation_id="delete_hub_push",
    summary="Delete a push to the hub",
    description="One that has not ended is given up: it begins no commit any more. What was committed stays on the hub.",
    responses=problems(404),
)
def delete_hub_push(push_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        push_requests.delete(session, writer, push_id)


def _stored(storage: Storage, content: bytes) -> AdapterFile:
    """The README, as an object that the push refers to."""
    incoming = storage.receive()
    try:
        incoming.write(content)
        stored = incoming.commit()
    finally:
        incoming.abandon()
    return AdapterFile(path=NAME, sha256=stored.sha256, bytes=stored.bytes)
