"""Why a task waits, for its owner: the reason code as a sentence with names and numbers, its place, its start and end.

Sentences are read long after the plan, so none counts in seconds from it: moments stand beside them.
Values only: knows no database. Names the owner's own tasks alone, by their names where they have one; any other is "another
tenant's task".
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from contract.gpu_counts import device_word, devices
from contract.wording.duration_words import duration
from contract.wording.size_words import gibibytes, gigabytes
from service.scheduler.estimate.prediction_intervals import PredictedInterval
from service.scheduler.explain.reason_codes import Code, Reason
from service.scheduler.explain.width_sentences import FitWords
from service.tasks.plan_status import unplanned_reasons

_NAMED = 3  # tasks named in a sentence


@dataclass(frozen=True)
class Offer:
    """What a node offers, in numbers for a sentence."""

    name: str
    gpus: int
    memory_bytes: int
    trouble: str = ""  # why it gets no tasks
    device_type: str = ""


@dataclass(frozen=True)
class Scene:
    """Names and numbers for sentences: nodes by id, tenants by task, bytes per GPU by queued task, nodes of running tasks.
    `names` are tasks' names in sentences, else their ids stand there. `lacking` says what it would take to train tasks that no
    node understands, `fit` on how many GPUs its base fits."""

    offers: Mapping[str, Offer]
    owners: Mapping[str, str]
    needs: Mapping[str, int]
    running: Mapping[str, str] = field(default_factory=dict)  # node by running task
    lacking: Mapping[str, str] = field(default_factory=dict)
    downloads: Mapping[str, str] = field(default_factory=dict)  # what its planned node fetches first, by task
    names: Mapping[str, str] = field(default_factory=dict)
    fit: Callable[[str], FitWords] = lambda task: FitWords()

    @cached_property
    def word(self) -> str:
        """What the fleet's devices are called."""
        return device_word(offer.device_type for offer in self.offers.values())

    def gpus(self, number: float) -> str:
        return devices(number, self.word)

    def asked(self, reason: Reason) -> str:
        """The GPUs of one node that a task waits for: by type where its base does not fit on those that it asks for."""
        return self.fit(reason.task).needed or self.gpus(float(reason.numbers["asked"]))


def explain(
    reason: Reason, scene: Scene, at: datetime, between: PredictedInterval | None = None, late: float | None = None
) -> dict[str, Any]:
    """The reason, JSON-ready. `late` is by how many seconds the task will miss its deadline."""
    sentence, fit = _SENTENCES[reason.code](reason, scene), scene.fit(reason.task)
    if fit.needed and reason.code in _COUNTED:
        sentence += f" {fit.why}"
    if reason.task in scene.downloads:
        sentence += f" {scene.downloads[reason.task]}"
    if late is not None:
        sentence += f" It is expected to end about {duration(late)} after its deadline."
    return {
        "code": reason.code.value,
        "sentence": sentence,
        "place": reason.place,
        "gpus": reason.numbers.get("asked") if fit.wanted is None else fit.wanted,
        "node": scene.offers[reason.node].name if reason.node is not None else None,
        "expected_start": _moment(at, reason.start),
        "expected_end": _moment(at, reason.end),
        "expected_start_interval": _moments(at, between.start if between is not None else None),
        "expected_end_interval": _moments(at, between.end if between is not None else None),
        "late_seconds": late,
    }


# ---- sentences -------------------------------------------------------------------------------------------------------


def downloads_first(node: str, base: str, size: int, seconds: float) -> str:
    """That a node has to fetch a base before the task can train there."""
    return f"Node {node} downloads {gigabytes(size)} of base model {base} first, about {duration(seconds)}."


def _capacity(reason: Reason, scene: Scene) -> str:
    asked, free, fitting, ahead = _numbers(reason, "asked", "free", "fitting", "ahead")
    gpus, where = scene.asked(reason), ""
    if reason.node is not None:
        there = [task for task, node in scene.running.items() if node == reason.node]
        where = f" It is planned for {scene.offers[reason.node].name}, held by {_names(there, reason.task, scene)}."
    queue = f" {_count(ahead, 'task is', 'tasks are')} planned before it." if ahead else ""
    if fitting == asked == 1:
        short = f"The only {scene.word} that it could run on is taken."
    elif free:
        short = f"It needs {gpus} of one node; of the {fitting} that it could run on, at most {free} {_are(free)} free on one."
    else:
        short = f"It needs {gpus} of one node; none of the {fitting} that it could run on is free."
    return f"{short}{where}{queue}"


def _quota(reason: Reason, scene: Scene) -> str:
    limit, held, beside = _numbers(reason, "limit", "held", "beside")
    away = f", {beside} of them held on nodes whose rows cannot be read" if beside else ""
    if reason.start is None and beside:
        return (
            f"It needs {scene.asked(reason)} of one node, but your quota is {limit} at once{away}; it starts once enough of "
            "them are given back."
        )
    if reason.start is None and scene.fit(reason.task).needed:
        fewer = "ask for fewer, " if scene.fit(reason.task).as_asked > max(1, limit) else ""
        smaller = f"{fewer}take a smaller base or precision nf4, or have an admin raise the quota"
        return f"It needs {scene.asked(reason)} of one node, but your quota is {limit} at once; {smaller}."
    if reason.start is None:
        few = "ask for fewer, or have an admin raise the quota"
        return f"It asks for {scene.asked(reason)}, but your quota is {limit} at once; {few}."
    if "reserved_task" in reason.numbers:
        other, gpus = _numbers(reason, "reserved_task", "reserved_gpus")
        first = f"{_names([other], reason.task, scene)}, which goes first and takes {scene.gpus(gpus)},"
        return (
            f"It needs {scene.asked(reason)}, and your quota is {scene.gpus(limit)} at once{away}: {first} would exceed it "
            "while this task still runs."
        )
    mine = [task for task in scene.running if scene.owners[task] == scene.owners[reason.task]]
    there = f" and {held:g}" if beside else f", {held:g} of them"
    return (
        f"It needs {scene.asked(reason)}, and your quota is {scene.gpus(limit)} at once{away}{there} held by "
        f"{_names(mine, reason.task, scene)}; it starts once enough are given back."
    )


def _fair_share(reason: Reason, scene: Scene) -> str:
    mine, theirs = _numbers(reason, "standing", "other_standing")
    return (
        f"It needs {scene.asked(reason)}, and your tenant has lately used {mine:.1f} times its fair share; another tenant's "
        f"task, whose tenant has used {theirs:.1f} times its own, goes first although it came later."
    )


def _reserved(reason: Reason, scene: Scene) -> str:
    asked, free = _numbers(reason, "room_asked", "free")
    if "reserved_task" not in reason.numbers:
        return f"{_free(free, scene)} for its {asked}, but starting it on them would delay a task that weighs more."
    other, gpus = _numbers(reason, "reserved_task", "reserved_gpus")
    return (
        f"{_free(free, scene)} for its {asked}, but they are kept for {_names([other], reason.task, scene)}, which "
        f"takes {scene.gpus(gpus)} as soon as they come free together; this task would still be running then."
    )


def _expected(reason: Reason, scene: Scene) -> str:
    asked, free = _numbers(reason, "room_asked", "free")
    return (
        f"{_free(free, scene)} for its {asked}, but they are kept for shorter tasks: at the rate of recent arrivals, "
        "starting it would delay those by more than waiting delays this task and the queue. Once it has waited for as long as "
        "it will run, it is no longer held back."
    )


def _drained(reason: Reason, scene: Scene) -> str:
    nodes, free = _numbers(reason, "nodes", "free")
    which = _count(nodes, "node that it fits is", "nodes that it fits are")
    closed = f"being drained or stopped, and {'takes' if nodes == 1 else 'take'} nothing new"
    return f"It needs {scene.asked(reason)}, and {which} {closed} ({_free(free, scene)} there)."


def _unfit(reason: Reason, scene: Scene) -> str:
    if not scene.offers:
        return "No node is ready; it starts when one joins that has room for it."
    asked, largest, wide = _numbers(reason, "asked", "largest", "wide_enough")
    if not wide:
        return f"It asks for {scene.gpus(asked)} of one node, but the largest has {largest}; it waits until a larger one joins."
    if unfit := scene.fit(reason.task).unfit:
        return unfit
    roomiest = max((o for o in scene.offers.values() if o.gpus >= asked), key=lambda offer: offer.memory_bytes)
    needed = gibibytes(scene.needs[reason.task])
    return (
        f"The base model's weights need at least {needed} of each {scene.word}, but the roomiest node "
        f"with {scene.gpus(asked)}, {roomiest.name}, has {gibibytes(roomiest.memory_bytes)}; take a smaller base or "
        "precision nf4, or wait until a roomier node joins."
    )


def _not_understood(reason: Reason, scene: Scene) -> str:
    return scene.lacking[reason.task]


def _quarantined(reason: Reason, scene: Scene) -> str:
    nodes, best = _numbers(reason, "nodes", "node")
    which = "The one node that it fits" if nodes == 1 else f"None of the {nodes} nodes that it fits"
    takes = "takes no task, or one at a time" if nodes == 1 else "takes more than one task at a time"
    return f"{which} {takes}: {scene.offers[best].name}: {scene.offers[best].trouble or 'another task is tried there first'}."


def _disk_full(reason: Reason, scene: Scene) -> str:
    nodes, best = _numbers(reason, "nodes", "node")
    which = "The one node that it fits" if nodes == 1 else f"None of the {nodes} nodes that it fits"
    takes = "takes no task" if nodes == 1 else "takes a task now"
    return f"{which} {takes}: {scene.offers[best].name}: {scene.offers[best].trouble}."


def _backing_off(reason: Reason, scene: Scene) -> str:
    nodes, best = _numbers(reason, "nodes", "node")
    why = scene.offers[best].trouble or "its executor was lost there more than once"
    others = f", and {_count(nodes - 1, 'other node is', 'other nodes are')} not to be had" if nodes > 1 else ""
    return f"It is tried again on {scene.offers[best].name} in a moment: {why}{others}."


def _paused(reason: Reason, scene: Scene) -> str:
    return str(unplanned_reasons.paused_by_owner()["sentence"])


_SENTENCES = {
    Code.WAITING_FOR_CAPACITY: _capacity,
    Code.WAITING_FOR_QUOTA: _quota,
    Code.FAIR_SHARE: _fair_share,
    Code.LARGER_TASK_RESERVED: _reserved,
    Code.SHORTER_TASKS_EXPECTED: _expected,
    Code.NODE_DRAINED: _drained,
    Code.NO_NODE_FITS: _unfit,
    Code.NO_NODE_UNDERSTANDS: _not_understood,
    Code.NODE_QUARANTINED: _quarantined,
    Code.NODE_DISK_FULL: _disk_full,
    Code.BACKING_OFF: _backing_off,
    Code.PAUSED: _paused,
}

# those whose sentences say how many GPUs it needs
_COUNTED = (Code.WAITING_FOR_CAPACITY, Code.WAITING_FOR_QUOTA, Code.FAIR_SHARE, Code.NODE_DRAINED)


# ---- words -----------------------------------------------------------------------------------------------------------


def _are(number: float) -> str:
    return "is" if number == 1 else "are"


def _free(number: int, scene: Scene) -> str:
    return f"{scene.gpus(number)} {'stands' if number == 1 else 'stand'} free"


def _numbers(reason: Reason, *names: str) -> list[Any]:
    return [reason.numbers[name] for name in names]


def _names(tasks: list[str], reader: str, scene: Scene) -> str:
    """These tasks, named as the owner of `reader` may see them."""
    own = Counter(scene.names.get(task, task) for task in tasks if scene.owners.get(task) == scene.owners[reader])
    others = len(tasks) - own.total()
    told = list(own.items())[:_NAMED]
    named = [name if number == 1 else f"{number} tasks named {name}" for name, number in told]
    if more := own.total() - sum(number for _, number in told):
        named.append(f"{more} more of yours")
    if others:
        named.append("another tenant's task" if others == 1 else f"{others} tasks of other tenants")
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named) or "nothing else"


def task_words(name: str | None, id: str) -> str:
    """What the owner calls a task: its name in quotation marks, or its id."""
    return f'"{name}"' if name else id


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _moment(at: datetime, seconds: float | None) -> str | None:
    return None if seconds is None else (at + timedelta(seconds=seconds)).isoformat()


def _moments(at: datetime, between: tuple[float, float] | None) -> list[str | None] | None:
    return None if between is None else [_moment(at, seconds) for seconds in between]
