"""The internal API that worker daemons and their executors call. Not part of the public API or its schema."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from contract.messages.cached_file_list import CachedFiles
from contract.messages.merge_messages import MergeReport
from contract.messages.node_messages import Heartbeat, NodeRegistration, NodeWelcome, PlacementsLost
from contract.messages.placement_messages import DesiredState
from contract.messages.report_messages import Report, ReportAck
from contract.messages.upload_messages import UploadGrant, UploadRequest
from service.app_state import DependenciesDep, ProfileUpdatesDep, Service, State, dependencies_of, state_of
from service.database.checked_json import readable
from service.files.models import File
from service.fleet import answer_sessions, nodes, reports
from service.fleet.base_models.model_catalog import is_file_of
from service.fleet.cached_files import unwanted
from service.fleet.desired_state import desired_state, starts_from
from service.fleet.errors import BaseObjectLost, FenceStale, ObjectUnknown
from service.fleet.heartbeats.lease_renewal import accept_heartbeat
from service.fleet.merges import merge_leases, merge_reports
from service.fleet.worker_authentication import check_node, check_placement
from service.http.body_middleware import Gate
from service.http.concurrency_limits import Hashing, Reporting
from service.http.problems import invalid_field
from service.http.request_bodies import Whole, read_json
from service.settings import Settings
from service.storage.downloads import caller_of, send_object
from service.storage.granted_uploads import store_granted
from service.storage.object_store import ObjectMismatch, ObjectMissing
from service.tenants.auth_throttle import address_of

router = APIRouter(prefix="/internal/v1", include_in_schema=False)

MAX_OBJECT_BYTES = 16 * 2**30  # per upload; a large adapter's checkpoint has a few hundred megabytes


async def _bearer(authorization: Annotated[str | None, Header()] = None) -> str | None:
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme.lower() == "bearer" and token else None


Bearer = Annotated[str | None, Depends(_bearer)]


async def _throttled(bearer: Bearer, request: Request, state: Service) -> AsyncIterator[None]:
    async with state.throttle.attempt(address_of(request), bearer or ""):
        yield


# for routes that look their bearer up; a placement's token is checked without the database
Throttled = Annotated[None, Depends(_throttled, scope="function")]
_PLACEMENT = "X-Motet-Placement"  # of an upload: the placement that it was granted to
UploadPlacement = Annotated[str, Header(alias=_PLACEMENT)]


class _NodeGate(Gate):
    """Admits who has the node's credential, or one that was valid lately. The routes look again, with the node's row locked."""

    async def __call__(self, request: Request) -> None:
        await self.admit(request)

    async def admit(self, request: Request) -> None:
        state, bearer = state_of(request), await _bearer(request.headers.get("authorization"))
        if bearer is not None and state.throttle.trusts(bearer):
            return
        async with state.throttle.attempt(address_of(request), bearer or ""), self.among(state):
            await run_in_threadpool(_require_node, state, request.path_params["node_id"], bearer)

    def among(self, state: State) -> AbstractAsyncContextManager[Any]:
        """What bounds how many are looked up at once."""
        return nullcontext()


class _HeartbeatGate(_NodeGate):
    """Once the API has started it trusts nobody yet, and all nodes beat at once: they may not take every thread."""

    def among(self, state: State) -> AbstractAsyncContextManager[Any]:
        return state.semaphores["heartbeats"]


class _PlacementGate(Gate):
    """Admits who has a token of the placement, which may have ended since."""

    async def __call__(self, request: Request) -> None:
        await self.admit(request)

    async def admit(self, request: Request) -> None:
        placement_id = request.path_params.get("placement_id") or request.headers.get(_PLACEMENT, "")
        check_placement(state_of(request).settings, placement_id, await _bearer(request.headers.get("authorization")))


OF_NODE, OF_BEATING, OF_PLACEMENT = Depends(_NodeGate()), Depends(_HeartbeatGate()), Depends(_PlacementGate())


def _require_node(state: State, node_id: str, bearer: str | None) -> None:
    with state.system.begin() as session:
        check_node(session, node_id, bearer)


@router.post("/nodes", status_code=201)
def register(
    said: NodeRegistration, bearer: Bearer, dependencies: DependenciesDep, state: Service, throttled: Throttled
) -> NodeWelcome:
    welcome = nodes.register(dependencies, said, bearer)
    state.throttle.trust(welcome.credential)
    return welcome


class _HeartbeatRoute(APIRoute):
    """Calls accept_heartbeat directly: FastAPI's dependency resolution takes longer, and a large fleet beats all the time."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            state, bearer = state_of(request), await _bearer(request.headers.get("authorization"))
            said = await request.body()
            async with state.throttle.attempt(address_of(request), bearer or ""), state.semaphores["heartbeats"]:
                answer = await run_in_threadpool(heartbeat, request.path_params["node_id"], said, bearer, state)
            return Response(answer, media_type="application/json")

        return handle


def heartbeat(node_id: str, said: Whole, bearer: Bearer, state: Service) -> bytes:
    """A HeartbeatAnswer, for a Heartbeat."""
    answer = accept_heartbeat(dependencies_of(state), node_id, bearer, read_json(Heartbeat, said))
    return answer.model_dump_json().encode()


router.add_api_route(
    "/nodes/{node_id}/heartbeats",
    heartbeat,
    methods=["POST"],
    route_class_override=_HeartbeatRoute,
    dependencies=[OF_BEATING],
)


@router.get("/nodes/{node_id}/desired")
def desired(node_id: str, bearer: Bearer, dependencies: DependenciesDep, throttled: Throttled) -> DesiredState:
    with dependencies.db.begin() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        return desired_state(session, dependencies.settings, check_node(session, node_id, bearer))


@router.post("/nodes/{node_id}/lost", status_code=204, dependencies=[OF_NODE])
def lost(node_id: str, said: PlacementsLost, bearer: Bearer, dependencies: DependenciesDep, throttled: Throttled) -> None:
    nodes.report_lost(dependencies, node_id, bearer, said)


@router.post("/nodes/{node_id}/cached-files", dependencies=[OF_NODE])
def cached_files(node_id: str, said: CachedFiles, bearer: Bearer, dependencies: DependenciesDep) -> CachedFiles:
    """Which of the files that the node keeps it has to erase."""
    with dependencies.db.begin() as session:
        check_node(session, node_id, bearer)
        return unwanted(session, said)


@router.post("/placements/{placement_id}/reports", dependencies=[OF_PLACEMENT])
def report(
    placement_id: str,
    said: Whole,
    bearer: Bearer,
    dependencies: DependenciesDep,
    profile_updates: ProfileUpdatesDep,
    limited: Reporting,
) -> ReportAck:
    return reports.accept(dependencies, profile_updates, placement_id, bearer, read_json(Report, said))


@router.get("/placements/{placement_id}/files/{file_id}")
def file(placement_id: str, file_id: str, bearer: Bearer, dependencies: DependenciesDep, request: Request) -> Response:
    """A data set of the placement's task."""
    with dependencies.db.begin() as session:
        task, _ = reports.own_placement(session, dependencies.settings, placement_id, bearer)
        if file_id not in (task.train_file_id, task.validation_file_id, task.prompts_file_id):
            raise ObjectUnknown(f"File {file_id} is not one of task {task.id}.")
        found = session.get_one(File, file_id)
    return send_object(request, dependencies.storage, found.sha256, found.name, "application/jsonl", worker=True)


@router.get("/placements/{placement_id}/objects/{sha256}")
def placement_object(
    placement_id: str, sha256: str, bearer: Bearer, dependencies: DependenciesDep, request: Request
) -> Response:
    """A checkpoint of one of the placement's jobs, a file of the adapter that they start from, or that a merge adds, or a file
    of its base where nodes fetch it from storage."""
    with dependencies.db.begin() as session:
        base, served = _served(session, dependencies.settings, placement_id, bearer)
        of_base = sha256 not in served and is_file_of(session, base, sha256)
        if sha256 not in served and not of_base:
            raise ObjectUnknown(f"{sha256} is no object of placement {placement_id}.")
    if of_base and not dependencies.storage.exists(sha256):
        raise BaseObjectLost(f"Storage holds no object {sha256}, a file of base model {base}.")
    return send_object(request, dependencies.storage, sha256, sha256, "application/octet-stream", worker=True)


def _served(session: Session, settings: Settings, placement_id: str, bearer: str | None) -> tuple[str, set[str]]:
    """The placement's base, and the objects that are its own: what its jobs have as checkpoints and start from, or what a merge
    adds, as far as that can be read; none of a session for answers."""
    if merge_leases.is_merge(placement_id):
        merged = merge_leases.own_merge(session, settings, placement_id, bearer)
        return merged.base_model, {file.sha256 for file in readable(merged.adapter_files) or ()}
    if (held := answer_sessions.own_session(session, settings, placement_id, bearer)) is not None:
        return held.base_model, set()
    task, _ = reports.own_placement(session, settings, placement_id, bearer)
    start = starts_from(session, task)
    folder = readable(start.manifest) if start is not None else None
    checkpoints = {found.sha256 for job in task.jobs if (found := readable(job.checkpoint)) is not None}
    return task.base_model, checkpoints | {file.sha256 for file in (folder.files if folder is not None else [])}


@router.post("/placements/{placement_id}/merge", status_code=204, dependencies=[OF_PLACEMENT])
def merge_report(placement_id: str, said: MergeReport, bearer: Bearer, dependencies: DependenciesDep) -> None:
    merge_reports.accept(dependencies, placement_id, bearer, said)


@router.post("/placements/{placement_id}/uploads", dependencies=[OF_PLACEMENT])
def upload(
    placement_id: str, said: UploadRequest, bearer: Bearer, dependencies: DependenciesDep, request: Request
) -> UploadGrant:
    """Where the placement may put one object."""
    if said.bytes > MAX_OBJECT_BYTES:
        raise invalid_field("bytes", "too_large", f"an object may have {MAX_OBJECT_BYTES} bytes, not {said.bytes}")
    with dependencies.db.begin() as session:
        if said.fence != _live_fence(session, dependencies.settings, placement_id, bearer):
            raise FenceStale(f"Placement {placement_id} is over (its fence is old); nothing was changed.")
    direct = caller_of(request, worker=True) if said.direct else None
    grant = dependencies.storage.grant_upload(said.sha256, said.bytes, direct)
    if grant.exists or not (grant.complete or grant.url or "").startswith("/"):  # not by this API: the token is not for others
        return grant
    return grant.model_copy(update={"headers": grant.headers | {"Authorization": f"Bearer {bearer}", _PLACEMENT: placement_id}})


@router.put("/objects/{token}", status_code=204, dependencies=[OF_PLACEMENT])
async def put_object(token: str, request: Request, bearer: Bearer, state: Service, placement: UploadPlacement = "") -> None:
    """The bytes of a granted upload, of a placement that has not ended since."""
    granted = state.grants.verify(token)
    await run_in_threadpool(_require_live, state, placement, bearer)
    await store_granted(request, state.storage, granted)


@router.post("/objects/{token}/complete", status_code=204, dependencies=[OF_PLACEMENT])
def complete_object(token: str, bearer: Bearer, state: Service, limited: Hashing, placement: UploadPlacement = "") -> None:
    """Verifies and keeps what a placement, which has not ended since, put to the presigned URLs of its grant."""
    granted = state.grants.verify(token)
    _require_live(state, placement, bearer)
    try:
        state.storage.complete_upload(token, granted.sha256, granted.size)
    except (ObjectMismatch, ObjectMissing) as error:
        raise invalid_field("body", "object_mismatch", str(error)) from None


def _require_live(state: State, placement_id: str, bearer: str | None) -> None:
    """Raise unless the bearer is the token of a live placement."""
    with state.system.begin() as session:
        _live_fence(session, state.settings, placement_id, bearer)


def _live_fence(session: Session, settings: Settings, placement_id: str, bearer: str | None) -> int:
    """The fence of the placement, or merge, whose token the bearer is. Raises unless it is live."""
    if merge_leases.is_merge(placement_id):
        return merge_leases.own_merge(session, settings, placement_id, bearer).fence
    return reports.own_placement(session, settings, placement_id, bearer)[1].fence
