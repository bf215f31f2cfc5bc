"""The planner: while changes ask for a plan, look, solve, write. One planner at a time, by a leased row with a token.

Postgres alone decides: a plan is written only under the token, and each task only if its status and fence are as they were
read. What starts is committed before the others are told why they wait. Hints go out after the commit, and may be lost.
"""

import logging
import time
from collections.abc import Sequence

from service.parts import Parts
from service.scheduler import snapshot, turn
from service.scheduler.promises import Promise
from service.scheduler.reclaim import reclaim, set_aside
from service.scheduler.snapshot import Snapshot
from service.scheduler.solve import solve
from service.scheduler.turn import LeaseLost
from service.scheduler.write import Placed, note_ends, place, starting, tell

_CLAIMS = 8  # that one plan takes GPUs back for

log = logging.getLogger(__name__)


def replan(parts: Parts) -> int:
    """Plan until no request is left, or another planner is at it; how many plans were made.

    Whoever finds the lease taken may go: its holder looks for requests once more after letting go.
    """
    made = 0
    while (token := turn.take(parts.db)) is not None:
        try:
            made += plan_once(parts, token)
        except LeaseLost:
            log.warning("another planner took over; the plan in hand is dropped")
            return made
        finally:
            turn.let_go(parts.db, token)
    return made


def plan_once(parts: Parts, token: str) -> bool:
    """Answer all requests there are with one plan; False if there are none. Raises LeaseLost.

    A planner that dies between placing and telling leaves its requests: the next plan finds the placements, and tells.
    """
    seen = _look(parts)
    if not seen.requests:
        return False
    if set_aside(parts, token, seen):
        seen = _look(parts)
    given: list[Promise] = []
    while len(given) < _CLAIMS and (promise := reclaim(parts, token, seen)) is not None:
        given.append(promise)
        seen = _look(parts, given)
    began = time.perf_counter()
    decision = solve(seen.problem)
    seconds = time.perf_counter() - began
    placed = Placed()
    if starting(seen, decision):
        with parts.db.begin() as session:
            turn.hold(session, token)
            placed = place(session, parts, seen, decision)
    with parts.db.begin() as session:
        turn.hold(session, token)
        tell(session, seen, decision, placed, seconds)
        note_ends(session, seen)
    return True


def _look(parts: Parts, promised: Sequence[Promise] = ()) -> Snapshot:
    with parts.db.begin() as session:
        return snapshot.read(session, parts, promised)
