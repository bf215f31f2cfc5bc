"""Assembles the FastAPI app: the domain packages' routes, middleware, error handlers, and the state that requests use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI

import service.adapters.routes
import service.adapters.upload_routes
import service.audit.routes
import service.autoscaling.routes
import service.backup.routes
import service.batches.routes
import service.completions.worker_routes
import service.files.import_routes
import service.files.routes
import service.fleet.admin_routes
import service.fleet.base_models.routes
import service.fleet.join_token_routes
import service.fleet.routes
import service.fleet.stored_model_routes
import service.hub_pushes.routes
import service.members.device_routes
import service.members.invitation_routes
import service.members.member_routes
import service.members.platform_routes
import service.members.service_account_routes
import service.merges.routes
import service.metrics.routes
import service.mirrors.routes
import service.openai.completions.routes
import service.openai.files.routes
import service.openai.jobs.routes
import service.openai.models.routes
import service.openai.uploads.routes
import service.scheduler.routes
import service.storage.routes
import service.tasks.routes
import service.tasks.submission.routes
import service.tenants.own_key_routes
import service.tenants.routes
import service.usage.price_routes
import service.usage.routes
import service.web.routes
import service.webhooks.routes
from contract.compatibility.version import VERSION
from service.app_state import State
from service.database.engine import pool_of
from service.http import openapi, problem_handlers
from service.http.body_middleware import Admission, BodyLimit, JsonCheck
from service.http.internal_port import InternalPort
from service.http.middleware import IgnoredParameters, RequestLog
from service.idempotency import repeated_requests
from service.metrics import health_routes
from service.metrics.api_metrics import ApiMetrics
from service.openai import error_objects
from service.settings import Settings
from service.tracing import span_exporter
from service.web.page_route import problem_page
from service.web.session import framed_problems

_ERROR_FORMATS = {error_objects.PREFIX: error_objects.render_problem} | dict.fromkeys(
    error_objects.MISSED, error_objects.render_missed
)
_ROUTERS = (
    service.tasks.submission.routes.router,
    service.tasks.routes.router,
    service.batches.routes.router,
    service.files.import_routes.router,  # before the upload, at the same path
    service.files.routes.router,
    service.scheduler.routes.router,
    service.adapters.routes.router,
    service.adapters.upload_routes.router,
    service.merges.routes.router,
    service.hub_pushes.routes.router,
    service.webhooks.routes.router,
    service.mirrors.routes.router,
    service.fleet.base_models.routes.router,
    service.fleet.stored_model_routes.router,
    service.fleet.admin_routes.router,
    service.fleet.join_token_routes.router,
    service.tenants.routes.router,
    service.tenants.own_key_routes.router,
    service.members.member_routes.router,
    service.members.device_routes.router,
    service.members.invitation_routes.router,
    service.members.service_account_routes.router,
    service.members.platform_routes.router,
    service.usage.routes.router,
    service.usage.price_routes.router,
    service.audit.routes.router,
    service.fleet.routes.router,
    service.metrics.routes.router,
    service.storage.routes.router,
    service.autoscaling.routes.router,
    service.backup.routes.router,
    service.openai.files.routes.router,
    service.openai.uploads.routes.router,
    service.openai.jobs.routes.router,
    service.openai.models.routes.router,
    service.openai.completions.routes.router,
    service.completions.worker_routes.router,
    health_routes.router,
    *service.web.routes.ROUTERS,
)


def create_app(settings: Settings, metrics: ApiMetrics | None = None) -> FastAPI:
    """The app for these settings. It opens no connection and starts no thread before its lifespan begins."""
    metrics = metrics or ApiMetrics()
    app = routes(metrics, settings.internal_port)
    app.state.motet = State.of(settings, metrics)
    return app


def routes(metrics: ApiMetrics | None = None, internal_port: int | None = None) -> FastAPI:
    """The app without its state: enough to generate the OpenAPI document, not to run."""
    app = FastAPI(
        title="Motet",
        summary="LoRA fine-tuning as a service: many adapters over one frozen backbone",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # json_logging.py and metrics/ do this instead
        lifespan=_lifespan,
    )
    app.add_middleware(InternalPort, port=internal_port)
    app.add_middleware(Admission)
    app.add_middleware(JsonCheck)
    app.add_middleware(BodyLimit)
    app.add_middleware(IgnoredParameters)
    app.add_middleware(RequestLog, metrics=metrics or ApiMetrics())
    problem_handlers.install(app, _ERROR_FORMATS, problem_page)
    framed_problems.install(app)
    repeated_requests.install(app)
    for router in _ROUTERS:
        # not include_router: FastAPI would match each router in turn, and the right one twice, which takes milliseconds
        app.router.routes.extend(router.routes)
    openapi.install(app)
    return app


def openapi_yaml() -> str:
    """The OpenAPI document as YAML, which the command `openapi` prints."""
    return openapi.as_yaml(routes())


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: State = app.state.motet
    # as many threads as database connections, so that a request that has a thread never waits for a connection
    to_thread.current_default_thread_limiter().total_tokens = pool_of(state.settings.api_processes)
    state.change_listener.start(asyncio.get_running_loop())
    span_exporter.start(state.settings, "motet-api", state.metrics.spans_dropped.inc)
    try:
        yield
    finally:
        await asyncio.to_thread(span_exporter.stop)
        await asyncio.to_thread(state.change_listener.stop)
        await state.polls.close()
        await state.keys.close()
        state.db.engine.dispose()
        state.system.engine.dispose()
