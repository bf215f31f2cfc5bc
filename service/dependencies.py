"""Dependencies of background work, built from the settings: database, storage, queue, wake-ups. Serves no HTTP."""

from dataclasses import dataclass, field

import service.tenants.models  # noqa: F401  (other tables refer to it)
from service.database.engine import Database
from service.lru_cache import LruCache
from service.messaging.queue import Queue
from service.messaging.wakeups import NodeWakeups
from service.settings import Settings
from service.storage.connect import storage_of
from service.storage.object_store import Storage


@dataclass(frozen=True)
class Dependencies:
    """One process's state (`db`, `storage`), wake-ups (`queue`, `wakeups`) and its planner's cache of estimates."""

    settings: Settings
    db: Database
    storage: Storage
    queue: Queue
    wakeups: NodeWakeups
    estimate_cache: LruCache = field(default_factory=LruCache)

    @classmethod
    def of(cls, settings: Settings) -> "Dependencies":
        """Build them from the settings. Opens no connection yet."""
        db = Database(settings.database_url, pool_size=5, timeouts=settings.work_timeouts)
        return cls(
            settings=settings,
            db=db,
            storage=storage_of(settings, db),
            queue=Queue(settings.redis_url),
            wakeups=NodeWakeups(settings.redis_url),
        )
