"""What background work needs, built from the settings: database, storage, queue, wake-ups. Serves no HTTP."""

from dataclasses import dataclass, field

import service.tenants.models  # noqa: F401  (other rooms' tables refer to it)
from service.background.queue import Queue
from service.background.wakeups import Hints
from service.database.engine import Database
from service.scheduler.estimate.estimate_cache import Memo
from service.settings import Settings
from service.storage.object_store import LocalStorage, Storage
from service.storage.upload_grants import UploadGrants


@dataclass(frozen=True)
class Dependencies:
    """Truth (`db`, `storage`) and hints (`queue`, `hints`) of one process, and what its planner need not work out again."""

    settings: Settings
    db: Database
    storage: Storage
    queue: Queue
    hints: Hints
    memo: Memo = field(default_factory=Memo)

    @classmethod
    def of(cls, settings: Settings) -> "Dependencies":
        """The parts as the settings want them. Nothing connects yet."""
        return cls(
            settings=settings,
            db=Database(settings.database_url, pool_size=5, timeouts=settings.work_timeouts),
            storage=LocalStorage(settings.storage_dir, UploadGrants(settings.secret_key.get_secret_value())),
            queue=Queue(settings.redis_url),
            hints=Hints(settings.redis_url),
        )
