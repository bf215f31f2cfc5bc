"""Copies bases from the hub to storage, in threads of a background process. Any number of copiers may run.

A file that storage holds is not fetched again, so a copy whose process died goes on with the file that it was at. Every file is
compared with its pinned sha256. No transaction is open during a download.
"""

import logging
from functools import partial

from contract.messages.placement_messages import BaseFile
from service.database.claimed_rows import Lost
from service.database.engine import Database
from service.files.imports.download import Download
from service.files.models import Pins
from service.fleet.base_models.copies.copy_claims import ClaimedCopy, CopyClaims
from service.http.outbound import Outbound
from service.http.problems import Problem, Unavailable
from service.hub.hub_client import Hub
from service.messaging.claim_courier import ClaimCourier, Taken
from service.messaging.progress_notes import ProgressNotes
from service.settings import Settings
from service.storage.object_store import ObjectMismatch, Storage

log = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0  # after which a hub that sends nothing is asked again
_FILE_SECONDS = 24 * 3600.0  # for one file


class BaseCopier(ClaimCourier[ClaimedCopy]):
    name, slots = "base copier", 2

    def __init__(self, db: Database, storage: Storage, settings: Settings) -> None:
        super().__init__()
        self._claims, self._storage, self._hub = CopyClaims(db), storage, Hub(settings)
        self._outbound = Outbound(settings.hub_networks, seconds=_SILENT_SECONDS)

    def take(self, most: int) -> Taken[ClaimedCopy]:
        taken: list[ClaimedCopy] = []
        while len(taken) < most and (claimed := self._claims.take()) is not None:
            taken.append(claimed)
        return Taken(taken)

    def work_off(self, claimed: ClaimedCopy) -> None:
        """Bring one base to storage, or to its next attempt."""
        try:
            for file in claimed.files:
                if not self._storage.grant_upload(file.sha256, file.bytes).exists:  # asked so, the object is spared by sweeps
                    self._copy(claimed, file)
                    self._claims.note_stored(claimed)
                else:
                    claimed.received += file.bytes
                    self._claims.renew(claimed)
            self._claims.finish(claimed)
            log.info("base model %s is in storage, %d bytes", claimed.base_model, claimed.received)
        except Lost:
            log.info("the copy of base model %s was given up, or is another process's now", claimed.base_model)
        except (Unavailable, OSError) as error:
            why = error if isinstance(error, Problem) else Unavailable(f"Storage does not take it now: {error}.")
            self._claims.fail(claimed, why, again=True)
        except ObjectMismatch as error:  # the bytes that came were right, so those that storage got were damaged on the way
            self._claims.fail(claimed, Unavailable(f"Storage did not get what was fetched: {error}."), again=True)
        except Problem as refusal:
            self._claims.fail(claimed, refusal, again=False)

    def release(self, claimed: ClaimedCopy) -> None:
        self._claims.release(claimed)

    def _copy(self, claimed: ClaimedCopy, file: BaseFile) -> None:
        """Fetch and store one file. Raises Problem, OSError and Lost."""
        url = self._hub.repository(claimed.repository).url(claimed.commit, file.path)
        before, incoming = claimed.received, self._storage.receive()
        notes = ProgressNotes(self.pause, partial(self._claims.renew, claimed))

        def sink(block: bytes) -> None:
            incoming.write(block)
            claimed.received += len(block)
            notes.moved()

        try:
            Download(
                outbound=self._outbound,
                url=url,
                token=self._hub.token,
                pins=Pins(sha256=file.sha256),
                total=file.bytes,
                trusted=self._hub.endpoint,
                seconds=_FILE_SECONDS,
                pause=notes.pause,
            ).run(sink)
            self._claims.renew(claimed, committing=True)
            incoming.commit(file.sha256, file.bytes)
        except BaseException:
            claimed.received = before
            raise
        finally:
            incoming.abandon()
