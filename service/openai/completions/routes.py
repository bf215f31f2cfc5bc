"""/openai/v1/chat/completions and /completions: bases and adapters answer, whole or as server-sent events.

For trying and evaluating; docs/OPERATIONS.md says how to serve an adapter for good.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from contract.messages.completion_messages import CompletionPiece
from service.app_state import Service, State
from service.authentication import KeyRefused, StillAllowed, Writer
from service.completions import requests
from service.completions.following import Following
from service.completions.requests import AskedModel
from service.database.engine import Database, clock
from service.http.middleware import request_id
from service.http.openai_ids import OpenAiIds
from service.http.problem_handlers import DATABASE_ERRORS, database_problem
from service.http.problems import Problem, invalid_field
from service.metrics.completion_metrics import Timing
from service.openai.completions.completion_objects import Choice, CompletionAnswer
from service.openai.completions.completion_requests import ChatRequest, TextRequest
from service.openai.error_objects import PREFIX, error_response
from service.openai.id_translation import ids_of
from service.openai.list_envelope import unix
from service.openai.models.asked_models import asked_model
from service.tasks.polling.event_stream import Allowed
from service.tenants.api_keys import Principal

router = APIRouter(prefix=PREFIX, include_in_schema=False)

_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@router.post("/chat/completions", response_model=None)
async def create_chat_completion(
    wanted: ChatRequest, writer: Writer, state: Service, request: Request, allowed: StillAllowed
) -> Response:
    return await _answer(wanted, writer, state, request, allowed)


@router.post("/completions", response_model=None)
async def create_completion(
    wanted: TextRequest, writer: Writer, state: Service, request: Request, allowed: StillAllowed
) -> Response:
    return await _answer(wanted, writer, state, request, allowed)


async def _answer(
    wanted: ChatRequest | TextRequest, writer: Principal, state: State, request: Request, allowed: Allowed
) -> Response:
    async def gone() -> bool:
        if not await allowed():
            raise KeyRefused("The key was revoked, expired or lost rights before the answer was whole; ask with another key.")
        return await request.is_disconnected()

    db, timing = state.db.for_tenant(writer.tenant_id), Timing(state.metrics)
    try:
        answer = await run_in_threadpool(_asked, wanted, writer, state, db)
        following = Following(state.settings, db, state.queue, state.change_listener, answer.request_id, gone)
        if not wanted.stream:
            return JSONResponse(await _whole(following, answer, timing))
        pieces = following.pieces()
        first = await anext(pieces, None)
        if first is None:
            raise ClientDisconnect
    except Problem as problem:
        timing.ended(problem.code)
        raise
    except ClientDisconnect:
        timing.ended("cancelled")
        raise
    following.read = True
    said = _events(_raising_problems(pieces, request), first, answer, wanted.include_usage, timing, ids_of(request))
    return StreamingResponse(said, media_type="text/event-stream", headers=_STREAM_HEADERS)


def _asked(wanted: ChatRequest | TextRequest, writer: Principal, state: State, db: Database) -> CompletionAnswer:
    """Make the request. Raises the problems that are known before an executor has it."""
    most, asked = state.settings.completion_max_tokens, getattr(wanted, wanted.most_named)
    if asked is not None and asked > most:
        raise invalid_field(
            wanted.most_named, "too_large", f"is {asked}; this service generates at most {most} tokens a choice"
        )
    work = wanted.work(requests.new_request_id(), writer.tenant_id, most)
    count = work.n * max(1, len(work.prompts))
    a_minute = state.settings.completion_tokens_per_minute
    if count * work.max_tokens > a_minute:  # by the limit of a minute it would be refused again after each wait
        message = f"may take {count * work.max_tokens} tokens in all; a tenant may use {a_minute} a minute, so lower it"
        raise invalid_field(wanted.most_named, "too_large", message)
    with db.begin() as session:
        model: AskedModel = asked_model(session, writer, wanted.model, wanted.precision)
        requests.make(session, state.settings, state.queue, writer, model, work)
        created = unix(clock(session))
    chat = isinstance(wanted, ChatRequest)
    return CompletionAnswer(
        work.request_id,
        wanted.model,
        created,
        f"fp_{model.base_revision[:12]}",
        chat,
        [Choice() for _ in range(count)],
        work.logprobs is not None,
    )


async def _whole(following: Following, answer: CompletionAnswer, timing: Timing) -> dict[str, Any]:
    attempt, over = following.attempt, False
    async with aclosing(following.pieces()) as pieces:
        async for piece in pieces:
            if following.attempt != attempt:
                attempt = following.attempt
                answer.begin_anew()
            answer.take(piece)
            timing.came(answer.completion_tokens)
            over = piece.over
    if not over:
        raise ClientDisconnect
    timing.ended("finished", answer.prompt_tokens, answer.completion_tokens)
    return answer.whole()


async def _raising_problems(
    pieces: AsyncGenerator[CompletionPiece, None], request: Request
) -> AsyncGenerator[CompletionPiece, None]:
    """The pieces; raises a Problem where the database fails, since no exception handler answers once a response has begun."""
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                yield piece
        except DATABASE_ERRORS as error:
            raise database_problem(error, request_id(request.scope)) from error


async def _events(
    pieces: AsyncGenerator[CompletionPiece, None],
    first: CompletionPiece,
    answer: CompletionAnswer,
    include_usage: bool,
    timing: Timing,
    ids: OpenAiIds,
) -> AsyncIterator[str]:
    outcome = "cancelled"
    more = {"usage": None} if include_usage else {}
    async with aclosing(pieces):
        try:
            for chunk in answer.first_chunks():
                yield _event(chunk | more)
            piece: CompletionPiece | None = first
            while piece is not None:
                for chunk in answer.chunks(piece):
                    yield _event(chunk | more)
                answer.take(piece)
                timing.came(answer.completion_tokens)
                if piece.over:
                    outcome = "finished"
                piece = await anext(pieces, None)
            if include_usage:
                yield _event(answer.usage_chunk())
            yield "data: [DONE]\n\n"
        except Problem as problem:
            outcome = problem.code
            body = error_response(problem, {}, ids).body
            yield f"data: {bytes(body).decode()}\n\n"
        finally:
            timing.ended(outcome, answer.prompt_tokens, answer.completion_tokens)


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
