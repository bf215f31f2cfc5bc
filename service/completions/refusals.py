"""Why no executor is started for a request, in words that say what to do. Decides nothing, and reads no rows.

A refusal is stored with the requests that it is for (`CompletionRequest.refusal`); the API process that waits tells its client.
"""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, TypeAdapter

from contract.wording.duration_words import duration
from contract.wording.size_words import gibibytes
from service.completions.errors import NoExecutor, TooManyCompletions
from service.database.checked_json import ParsedJson, UnreadValue
from service.http.problems import Problem

LEAST, MOST = 2, 300  # seconds of Retry-After
_UNKNOWN = 30  # where nobody knows when a device is free


class Refusal(BaseModel):
    """code: of the problem that it becomes. retry_after: seconds until another try may succeed."""

    code: str = NoExecutor.code
    detail: str
    retry_after: int

    def problem(self) -> Problem:
        if self.code == TooManyCompletions.code:
            return TooManyCompletions.after(self.retry_after, self.detail)
        return NoExecutor(self.detail, retry_after=self.retry_after)


_STORED = ParsedJson(TypeAdapter(Refusal), "reason (completion_requests.refusal)", none_as_null=True)


def problem_of(stored: Any) -> Problem:
    """What the client of a request with this refusal is told."""
    refusal: Refusal | UnreadValue = _STORED.read(stored)
    if isinstance(refusal, UnreadValue):
        return NoExecutor(f"No executor can be started for the request, and {refusal.why}. Try again.", retry_after=_UNKNOWN)
    return refusal.problem()


def at_limit(limit: int, bases: Collection[str], idle_seconds: float, left: float) -> Refusal:
    """The tenant's sessions are as many as it may have, of these bases. left: seconds until one of them may be idle."""
    return Refusal(
        code=TooManyCompletions.code,
        detail=(
            f"The tenant may have {limit} at once of executors that only answer, and has them ({', '.join(sorted(bases))}). "
            f"Ask those bases, or wait until one was not asked for {duration(idle_seconds)}."
        ),
        retry_after=_bounded(left),
    )


def disabled(base: str) -> Refusal:
    return Refusal(
        detail=f"Base model {base} is not enabled, so no executor is started for it; ask an admin.", retry_after=MOST
    )


def unfit(base: str, precision: str, memory_bytes: float, fits: int, ready: int) -> Refusal:
    """No node takes the base. fits: of the nodes that are ready, those that could hold it."""
    if not ready:
        why, again = "no node is ready. Try again once one has joined", _UNKNOWN
    elif fits:
        why = f"the nodes that could hold it ({fits}) take nothing at the moment. GET /v1/schedule says why; try again later"
        again = _UNKNOWN
    else:
        why = (
            f"none of the nodes that are ready ({ready}) holds it: it needs a device with {gibibytes(memory_bytes)}, and "
            "a worker of this version. Ask it in nf4, or while a task trains on it"
        )
        again = MOST
    return Refusal(detail=f"No executor can be started for base model {base} in {precision}: {why}.", retry_after=again)


def failing(base: str, precision: str, left: float) -> Refusal:
    """The base ended twice within a short time wherever a device is free. left: seconds until it is tried again.

    Why it ended is not said: a worker's words name its paths and processes.
    """
    return Refusal(
        detail=(
            f"The executor for base model {base} in {precision} ended twice; it is tried again shortly. An admin sees why on "
            "the cluster page."
        ),
        retry_after=_bounded(left),
    )


def busy(base: str, precision: str, devices: int, by_tasks: int, free_in: float | None) -> Refusal:
    """Tasks, and other bases that are asked, hold all devices that could hold it. free_in: seconds until the first is expected
    to be free."""
    holders = "tasks" if by_tasks == devices else "other bases that are asked" if not by_tasks else "tasks and other bases"
    when = f"the first is expected to be free in {duration(max(free_in, LEAST))}" if free_in is not None else "no end is known"
    return Refusal(
        detail=(
            f"No executor runs base model {base} in {precision}, and none can be started: {holders} hold every device that "
            f"could hold it ({devices}); {when}. Try again then, or ask while a task trains on this base; to serve an adapter "
            "for good, see docs/OPERATIONS.md."
        ),
        retry_after=_bounded(_UNKNOWN if free_in is None else free_in),
    )


def _bounded(seconds: float) -> int:
    return int(min(MOST, max(LEAST, seconds + 0.999)))
