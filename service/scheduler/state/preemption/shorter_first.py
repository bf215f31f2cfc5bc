"""Asks running tasks to leave for much shorter waiting ones, as core/preemption/shortest_remaining.py decides after a plan.

Their GPUs are reserved for the preemptor, as those that fair share takes back are. Decides nothing.
"""

from contract.wording.duration_words import duration
from service.dependencies import Dependencies
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.explain.waiting_sentences import task_words
from service.scheduler.state.preemption.gpu_reservations import GpuReservation
from service.scheduler.state.preemption.leaving import leave_for
from service.scheduler.state.snapshot import Snapshot

Made = dict[ShortPreemption, GpuReservation]


def preempt_for_shorter(dependencies: Dependencies, token: str, seen: Snapshot, decision: Decision) -> Made:
    """Ask the victims to leave. Returns the preemptions that were asked for. Raises LeaseLost."""
    found = Made()
    for made in shorter_first(seen.problem, decision):
        why = f"{made.task} takes {made.seconds} s"
        asked = {
            victim
            for victim in made.victims
            if leave_for(dependencies, token, seen.placements[victim].id, made.task, why, notice(seen, made, victim))
        }
        if asked:
            found[made] = GpuReservation(made.task, made.node, frozenset(asked))
    return found


def notice(seen: Snapshot, made: ShortPreemption, victim: str) -> str:
    """Message for the victim's owner; names the preempting task only if it is the owner's."""
    preemptor = seen.tasks[made.task]
    same = preemptor.tenant_id == seen.tasks[victim].tenant_id
    whom = task_words(preemptor.name, preemptor.id) if same else "another tenant's task"
    return (
        f"Paused for {whom}, which takes about {duration(made.seconds)} and would have waited for "
        f"about {duration(made.sooner)} longer. It goes on from its checkpoint after that."
    )
