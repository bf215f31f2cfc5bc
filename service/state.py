"""What every request may reach: the parts of one running service, and the dependencies that hand them to routes."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from service.db import Database
from service.grants import UploadGrants
from service.hints import Hints
from service.parts import Parts
from service.queue import Queue
from service.settings import Settings
from service.storage import LocalStorage, Storage
from service.tasks.watch import Watcher


@dataclass(frozen=True)
class State:
    settings: Settings
    db: Database
    queue: Queue
    hints: Hints
    storage: Storage
    grants: UploadGrants
    watcher: Watcher

    @classmethod
    def of(cls, settings: Settings) -> "State":
        """The parts as the settings want them. Nothing connects yet."""
        grants = UploadGrants(settings.secret_key.get_secret_value())
        return cls(
            settings=settings,
            db=Database(settings.database_url),
            queue=Queue(settings.redis_url),
            hints=Hints(settings.redis_url),
            storage=LocalStorage(settings.storage_dir, grants),
            grants=grants,
            watcher=Watcher(settings.database_url),
        )


def state_of(request: Request) -> State:
    return cast(State, request.app.state.motet)


def _settings(request: Request) -> Settings:
    return state_of(request).settings


def _db(request: Request) -> Database:
    return state_of(request).db


def _queue(request: Request) -> Queue:
    return state_of(request).queue


def _hints(request: Request) -> Hints:
    return state_of(request).hints


def _storage(request: Request) -> Storage:
    return state_of(request).storage


def _grants(request: Request) -> UploadGrants:
    return state_of(request).grants


def _parts(request: Request) -> Parts:
    state = state_of(request)
    return Parts(state.settings, state.db, state.storage, state.queue, state.hints)


def _watcher(request: Request) -> Watcher:
    return state_of(request).watcher


Config = Annotated[Settings, Depends(_settings)]
Db = Annotated[Database, Depends(_db)]
Wakes = Annotated[Queue, Depends(_queue)]
NodeHints = Annotated[Hints, Depends(_hints)]
Store = Annotated[Storage, Depends(_storage)]
Grants = Annotated[UploadGrants, Depends(_grants)]
Works = Annotated[Parts, Depends(_parts)]
Watch = Annotated[Watcher, Depends(_watcher)]
