"""HTTP route for admins: how old the newest backup is. It takes none: the API does not know the database's owner."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from service.authentication import AdminDb
from service.database.engine import clock
from service.http.response_schemas import problems
from service.metrics.models import NewestBackup

router = APIRouter(prefix="/v1", responses=problems(401, 403))


class NewestBackupResource(BaseModel):
    """The newest whole backup of this database; null where none was ever taken."""

    object: Literal["newest_backup"] = "newest_backup"
    name: str | None
    taken_at: datetime | None
    age_seconds: float | None = Field(description="On the database's clock")


@router.get(
    "/admin/newest-backup",
    operation_id="get_newest_backup",
    summary="When the newest backup was taken",
    description="By `python -m service backup`, the chart's CronJob, or `motet admin backup`.",
    tags=["admin"],
)
def get_newest_backup(admin: AdminDb) -> NewestBackupResource:
    with admin.begin() as session:
        found = session.get(NewestBackup, 1)
        if found is None:
            return NewestBackupResource(name=None, taken_at=None, age_seconds=None)
        age = (clock(session) - found.taken_at).total_seconds()
        return NewestBackupResource(name=found.name, taken_at=found.taken_at, age_seconds=max(0.0, age))
