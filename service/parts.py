"""The parts that work on tasks without serving HTTP: the fleet's actions, the planner, the queue worker, the reconciler."""

from dataclasses import dataclass, field

import service.tenants.models  # noqa: F401  (other rooms' tables refer to it)
from service.db import Database
from service.grants import UploadGrants
from service.hints import Hints
from service.queue import Queue
from service.scheduler.memo import Memo
from service.settings import Settings
from service.storage import LocalStorage, Storage


@dataclass(frozen=True)
class Parts:
    """Truth (`db`, `storage`) and hints (`queue`, `hints`) of one process, and what its planner need not work out again."""

    settings: Settings
    db: Database
    storage: Storage
    queue: Queue
    hints: Hints
    memo: Memo = field(default_factory=Memo)

    @classmethod
    def of(cls, settings: Settings) -> "Parts":
        """The parts as the settings want them. Nothing connects yet."""
        return cls(
            settings=settings,
            db=Database(settings.database_url, pool_size=5),
            storage=LocalStorage(settings.storage_dir, UploadGrants(settings.secret_key.get_secret_value())),
            queue=Queue(settings.redis_url),
            hints=Hints(settings.redis_url),
        )
