"""What a node reports of a merge: files that storage holds, its end, or why there will be none."""

from datetime import timedelta

from contract.messages.merge_messages import MergeReport
from service.database.checked_json import required
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.merges.merge_leases import fail, own_merge
from service.http.problems import invalid_field
from service.merges.models import READY


def accept(dependencies: Dependencies, merged_id: str, bearer: str | None, said: MergeReport) -> None:
    """Apply a report; the same one again changes nothing. Raises FenceStale, and Invalid for a file that storage lacks;
    ResultUnreadable."""
    missing = [file.path for file in said.files if not dependencies.storage.exists(file.sha256)]
    if missing:
        raise invalid_field("files", "object_missing", f"storage does not hold {missing[0]}")
    with dependencies.db.begin() as session:
        merged, now = own_merge(session, dependencies.settings, merged_id, bearer), clock(session)
        if said.error is not None:
            fail(merged, now, said.error)
            return
        held = {file.path: file for file in [*required(merged.files, f"{merged.id}: "), *said.files]}
        merged.files, merged.attempts, merged.error = [held[path] for path in sorted(held)], 0, None
        if said.done:
            merged.status, merged.ended_at, merged.lease_until, merged.waits_for = READY, now, None, None
            merged.bytes = sum(file.bytes for file in held.values())
            merged.expires_at = now + timedelta(days=dependencies.settings.merged_model_days)
