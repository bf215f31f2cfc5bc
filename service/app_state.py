"""The state of one API process, and the FastAPI dependencies that inject its members into routes."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from anyio import CapacityLimiter
from fastapi import Depends, Request

from service.database.async_reader import AsyncReader
from service.database.engine import Database, pool_of
from service.dependencies import Dependencies
from service.files.folder_tokenizer import Tokenizers
from service.fleet.base_models.base_folders import BaseFolders
from service.fleet.learning_protocol import ProfileUpdates
from service.graders.endpoint_graders import EndpointGraders
from service.http import concurrency_limits
from service.hub.hub_client import Hub
from service.lru_cache import LruCache
from service.messaging.queue import Queue
from service.messaging.wakeups import NodeWakeups
from service.metrics.api_metrics import ApiMetrics
from service.oidc.provider import Provider
from service.scheduler.state.report_learning import ReportLearning
from service.settings import Settings
from service.storage.connect import storage_of
from service.storage.object_store import Storage
from service.storage.upload_grants import UploadGrants
from service.tasks.polling.event_stream import Feed
from service.tasks.polling.long_polling import ChangeListener
from service.tasks.polling.poll_cache import PollCache
from service.tasks.submission.coalesced_submission import SubmissionCoalescer
from service.tenants.auth_throttle import AuthThrottle
from service.tenants.key_cache import KeyCache
from service.tenants.rate_limits import Rates


@dataclass(frozen=True)
class State:
    """`db` is subject to row-level security: a transaction sees one tenant's rows. `system` bypasses it and sees all rows."""

    settings: Settings
    db: Database
    system: Database
    queue: Queue
    wakeups: NodeWakeups
    storage: Storage
    grants: UploadGrants
    change_listener: ChangeListener
    feed: Feed
    polls: PollCache
    submissions: SubmissionCoalescer
    graders: EndpointGraders
    semaphores: dict[str, asyncio.Semaphore]
    throttle: AuthThrottle
    keys: KeyCache
    provider: Provider | None  # of identities; None: keys alone sign in
    provider_threads: CapacityLimiter  # that wait for it, and for nothing that other requests need
    rates: Rates
    metrics: ApiMetrics
    tokenizers: Tokenizers
    base_folders: BaseFolders
    hub: Hub
    profile_updates: ProfileUpdates
    estimate_cache: LruCache  # needs no lock, since one estimate runs at a time

    @classmethod
    def of(cls, settings: Settings, metrics: ApiMetrics) -> "State":
        """Build the state from the settings. Opens no connection yet."""
        grants, connections = UploadGrants(settings.secret_key.get_secret_value()), pool_of(settings.api_processes)
        timeouts, queue, semaphores = settings.request_timeouts, Queue(settings.redis_url), concurrency_limits.make()
        system = Database(settings.database_url, connections, timeouts)
        change_listener = ChangeListener(settings.app_database_url, timeouts)
        throttle = AuthThrottle(settings.failed_authentications_per_minute)
        keys = KeyCache(AsyncReader(settings.database_url, timeouts), throttle)
        change_listener.on_change(keys.heard)
        graders = EndpointGraders.of(settings)
        readers = [AsyncReader(settings.app_database_url, timeouts) for _ in range(2)]
        return cls(
            settings=settings,
            db=Database(settings.app_database_url, connections, timeouts),
            system=system,
            queue=queue,
            wakeups=NodeWakeups(settings.redis_url),
            storage=storage_of(settings, system),
            grants=grants,
            change_listener=change_listener,
            feed=Feed(change_listener),
            polls=PollCache(change_listener, *readers),
            submissions=SubmissionCoalescer(queue, graders, semaphores["submissions"]),
            graders=graders,
            semaphores=semaphores,
            throttle=throttle,
            keys=keys,
            provider=Provider(settings) if settings.oidc_issuer is not None else None,
            provider_threads=CapacityLimiter(8),
            rates=Rates(settings.redis_url),
            metrics=metrics,
            tokenizers=Tokenizers(),
            base_folders=BaseFolders(),
            hub=Hub(settings),
            profile_updates=ReportLearning(),
            estimate_cache=LruCache(),
        )

    def measure(self) -> None:
        """Set the gauges of this process: database connections in use, room for objects."""
        for role, database in (("app", self.db), ("system", self.system)):
            self.metrics.connections.labels(role).set(database.in_use)
        self.metrics.storage_free.set(self.storage.free_bytes())


def state_of(request: Request) -> State:
    return cast(State, request.app.state.motet)


def public_url(request: Request, path: str) -> str:
    """The address of a page of this service as its users open it."""
    return f"{state_of(request).settings.public_url or str(request.base_url)}".rstrip("/") + f"/{path}"


async def _service(request: Request) -> State:
    return state_of(request)


async def _settings(request: Request) -> Settings:
    return state_of(request).settings


async def _system(request: Request) -> Database:
    return state_of(request).system


async def _queue(request: Request) -> Queue:
    return state_of(request).queue


async def _wakeups(request: Request) -> NodeWakeups:
    return state_of(request).wakeups


async def _storage(request: Request) -> Storage:
    return state_of(request).storage


def dependencies_of(state: State) -> Dependencies:
    return Dependencies(state.settings, state.system, state.storage, state.queue, state.wakeups, state.estimate_cache)


async def _dependencies(request: Request) -> Dependencies:
    return dependencies_of(state_of(request))


async def _profile_updates(request: Request) -> ProfileUpdates:
    return state_of(request).profile_updates


async def _graders(request: Request) -> EndpointGraders:
    return state_of(request).graders


async def _polls(request: Request) -> PollCache:
    return state_of(request).polls


async def _tokenizers(request: Request) -> Tokenizers:
    return state_of(request).tokenizers


async def _base_folders(request: Request) -> BaseFolders:
    return state_of(request).base_folders


async def _hub(request: Request) -> Hub:
    return state_of(request).hub


async def _feed(request: Request) -> Feed:
    return state_of(request).feed


# async, though nothing is awaited: FastAPI would run each sync dependency in a thread
Service = Annotated[State, Depends(_service)]
Config = Annotated[Settings, Depends(_settings)]
SystemDb = Annotated[Database, Depends(_system)]  # every tenant's rows: for keys, admins and the fleet
QueueDep = Annotated[Queue, Depends(_queue)]
WakeupsDep = Annotated[NodeWakeups, Depends(_wakeups)]
Store = Annotated[Storage, Depends(_storage)]
DependenciesDep = Annotated[Dependencies, Depends(_dependencies)]
ProfileUpdatesDep = Annotated[ProfileUpdates, Depends(_profile_updates)]
GradersDep = Annotated[EndpointGraders, Depends(_graders)]
PollCacheDep = Annotated[PollCache, Depends(_polls)]
BaseTokenizers = Annotated[Tokenizers, Depends(_tokenizers)]
BaseFoldersDep = Annotated[BaseFolders, Depends(_base_folders)]
HubDep = Annotated[Hub, Depends(_hub)]
Events = Annotated[Feed, Depends(_feed)]
