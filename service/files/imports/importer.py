"""Fetches what tenants named, in threads of a background process. Any number of importers may run.

An import is claimed for 4 minutes, and the claim is renewed as bytes arrive: if its process dies, another importer takes it up
from the beginning, and what was written is swept with other partial objects. No transaction is open during a download.
"""

import logging
from functools import partial

from service.database.claimed_rows import Lost
from service.dependencies import Dependencies
from service.files.dataset_intake import CheckedDataSet, Intake, IntakeLimits
from service.files.imports.actions import box_of
from service.files.imports.claims import Claimed, Claims
from service.files.imports.download import Download
from service.http.outbound import Outbound
from service.http.problems import Problem, Unavailable
from service.messaging.claim_courier import ClaimCourier, Taken
from service.messaging.progress_notes import ProgressNotes
from service.secret_box import Unsealable
from service.settings import Settings

log = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0  # after which a source that sends nothing is asked again


def outbound_of(settings: Settings, on_hub: bool) -> Outbound:
    """The SSRF guard for a source: the hub may redirect where an operator said, a tenant's URL may not."""
    return Outbound(settings.hub_networks if on_hub else settings.import_networks, seconds=_SILENT_SECONDS)


class Importer(ClaimCourier[Claimed]):
    name, slots = "importer", 2  # each checks its rows in Python

    def __init__(self, dependencies: Dependencies) -> None:
        super().__init__()
        self._settings, self._storage = dependencies.settings, dependencies.storage
        self._claims = Claims(dependencies.db, box_of(dependencies.settings))

    def take(self, most: int) -> Taken[Claimed]:
        claimed = self._claims.take()
        return Taken([]) if claimed is None else Taken([claimed], seconds=0.0)

    def release(self, claimed: Claimed) -> None:
        self._claims.release(claimed)

    def work_off(self, claimed: Claimed) -> None:
        """Bring one import to its end, or to its next attempt."""
        try:
            data = self._received(claimed)
            self._claims.finish(claimed, data)
            log.info("import %s is a file of %d rows", claimed.id, data.rows)
        except Lost:
            log.info("import %s was given up, or is another process's now", claimed.id)
        except (Unavailable, OSError) as error:
            self._claims.retry(claimed, _problem(error))
        except Problem as refusal:
            self._claims.fail(claimed, refusal)
        except Unsealable as error:
            log.error("import %s: %s", claimed.id, error)
            self._claims.fail(claimed, Problem("The secret key that its source was encrypted under is gone; import it again."))

    def _received(self, claimed: Claimed) -> CheckedDataSet:
        url, token, trusted = self._claims.opened(claimed, self._settings.import_seconds + _SILENT_SECONDS)
        intake = Intake(self._storage.receive(), IntakeLimits.of(self._settings))
        notes = ProgressNotes(self.pause, partial(self._claims.renew, claimed))

        def sink(block: bytes) -> None:
            intake.feed(block)
            claimed.received += len(block)
            notes.moved()

        download = Download(
            outbound=outbound_of(self._settings, on_hub=bool(trusted)),
            url=url,
            token=token,
            pins=claimed.pins,
            total=claimed.total,
            trusted=trusted,
            seconds=self._settings.import_seconds,
            pause=notes.pause,
        )
        try:
            download.run(sink)
            self._claims.renew(claimed, committing=True)
            return intake.finish()
        finally:
            intake.abandon()


def _problem(error: Exception) -> Problem:
    return error if isinstance(error, Problem) else Unavailable(f"Storage does not take it now: {error}.")
