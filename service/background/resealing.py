"""The command `reseal`: encrypts all sealed values under the newest MOTET_SECRET_KEY, so that an earlier one can be dropped.

Answers under Idempotency-Keys are left: they end within a day. Running it beside the service is safe: each row is locked.
"""

import logging
from collections.abc import Sequence

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from service.database.engine import Base, Database
from service.files.imports.actions import box_of as imports_box
from service.files.models import FileImport
from service.graders.endpoint_graders import box_of as graders_box
from service.graders.models import EndpointGrader
from service.hub_pushes.models import HubPush
from service.hub_pushes.push_requests import box_of as pushes_box
from service.mirrors.models import TrackingServer
from service.mirrors.tracking_servers import box_of as mirrors_box
from service.secret_box import SecretBox, Unsealable
from service.settings import Settings, SettingsError, say
from service.webhooks.factories import box_of as webhooks_box
from service.webhooks.models import Webhook

log = logging.getLogger(__name__)

_BATCH = 500


def run(settings: Settings) -> None:
    """The command. Raises SettingsError where a value opens under none of the keys."""
    say(f"{reseal(settings)} secrets are sealed under the newest key")
    say("a day from now, when the answers under Idempotency-Keys have ended too, MOTET_SECRET_KEYS_BEFORE can be left out")


def reseal(settings: Settings) -> int:
    """Seal all values anew, and return how many. Raises SettingsError where one opens under none of the keys; the others are
    sealed anew all the same."""
    db = Database(settings.database_url, pool_size=1, timeouts=settings.work_timeouts)
    renewed, lost = 0, list[str]()
    for model, columns, box in (
        (Webhook, (Webhook.secret, Webhook.secret_before), webhooks_box(settings)),
        (FileImport, (FileImport.sealed,), imports_box(settings)),
        (HubPush, (HubPush.sealed,), pushes_box(settings)),
        (EndpointGrader, (EndpointGrader.headers,), graders_box(settings)),
        (TrackingServer, (TrackingServer.credentials,), mirrors_box(settings)),
    ):
        done, failed = _reseal(db, model, columns, box)
        renewed, lost = renewed + done, lost + failed
    db.engine.dispose()
    if lost:
        raise SettingsError(
            f"{len(lost)} secrets open under none of MOTET_SECRET_KEY and MOTET_SECRET_KEYS_BEFORE: {', '.join(lost[:10])}; "
            f"{renewed} others are sealed under the newest key"
        )
    return renewed


def _reseal(
    db: Database, model: type[Base], columns: Sequence[InstrumentedAttribute[bytes | None]], box: SecretBox
) -> tuple[int, list[str]]:
    """How many values were sealed anew, and the ids of rows with one that could not be opened."""
    id: InstrumentedAttribute[str] = model.id  # type: ignore[attr-defined]
    sealed: ColumnElement[bool] = or_(*(column.is_not(None) for column in columns))
    done, lost, last = 0, list[str](), ""
    while True:
        with db.begin() as session:
            rows = session.scalars(select(model).where(id > last, sealed).order_by(id).limit(_BATCH).with_for_update()).all()
            for row in rows:
                last = row.id  # type: ignore[attr-defined]
                try:
                    for column in columns:
                        if (value := getattr(row, column.key)) is not None:
                            setattr(row, column.key, box.renew(value))
                            done += 1
                except Unsealable as error:
                    log.error("%s %s: %s", model.__tablename__, last, error)
                    lost.append(last)
        if len(rows) < _BATCH:
            return done, lost
