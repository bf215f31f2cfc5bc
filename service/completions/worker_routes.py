"""The internal routes of completions: executors ask for requests by long polls, fetch adapters, and send pieces."""

import asyncio

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from contract.messages.completion_messages import CompletionPieces, CompletionsGiven, CompletionsWanted, PiecesTaken
from service.app_state import DependenciesDep, Service, State
from service.completions import answers
from service.completions.executor_claims import Carrier, carrier_of, claim, claimed, renew, serves_object
from service.completions.requests import wakes_executors
from service.fleet.errors import ObjectUnknown
from service.fleet.routes import OF_PLACEMENT, Bearer
from service.storage.downloads import send_object
from service.tasks.polling.event_stream import heard

router = APIRouter(prefix="/internal/v1/placements/{placement_id}", include_in_schema=False, dependencies=[OF_PLACEMENT])


@router.post("/completions")
async def give(placement_id: str, said: CompletionsWanted, bearer: Bearer, state: Service) -> CompletionsGiven:
    """Requests for the executor that holds this placement, at once or as soon as there are any."""
    until = asyncio.get_running_loop().time() + said.wait
    carrier = await run_in_threadpool(_carrier, state, placement_id, bearer)
    with state.change_listener.watch(wakes_executors(carrier.base_revision)) as changed:
        while True:
            changed.clear()
            given = await run_in_threadpool(_give, state, placement_id, bearer, said)
            left = until - asyncio.get_running_loop().time()
            if given.requests or given.gone or left <= 0 or state.change_listener.released:
                return given
            await heard(changed, left)


def _carrier(state: State, placement_id: str, bearer: str | None) -> Carrier:
    with state.system.begin() as session:
        return carrier_of(session, state.settings, placement_id, bearer)


def _give(state: State, placement_id: str, bearer: str | None, said: CompletionsWanted) -> CompletionsGiven:
    with state.system.begin() as session:
        carrier = carrier_of(session, state.settings, placement_id, bearer)
        gone = renew(session, carrier, said)
        return CompletionsGiven(requests=claim(session, carrier, said), gone=gone)


@router.post("/completion-pieces")
def take(placement_id: str, said: CompletionPieces, bearer: Bearer, dependencies: DependenciesDep) -> PiecesTaken:
    with dependencies.db.begin() as session:
        return answers.take(session, carrier_of(session, dependencies.settings, placement_id, bearer), said)


@router.get("/completions/{request_id}/objects/{sha256}")
def adapter_file(
    placement_id: str, request_id: str, sha256: str, bearer: Bearer, dependencies: DependenciesDep, request: Request
) -> Response:
    """A file of the adapter that a request asks which this placement's executor has claimed."""
    with dependencies.db.begin() as session:
        found = claimed(session, carrier_of(session, dependencies.settings, placement_id, bearer), request_id)
        if found is None or not serves_object(session, found, sha256):
            raise ObjectUnknown(f"Request {request_id} asks no adapter with a file {sha256}.")
    return send_object(request, dependencies.storage, sha256, sha256, "application/octet-stream", worker=True)
