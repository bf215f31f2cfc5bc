"""Which waiting tasks may not be placed on which nodes, and why, apart from size. Values only: knows no rows and no plan.

A node that is quarantined, rests, has no room on its disk or does not apply its desired state gets no task; one on probation
gets one task. A task is not placed on a node whose capabilities do not cover its spec, that could not read it, or that lost it
just now.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from service.fleet.node_health.node_faults import Fault

FP8 = "precision=fp8"  # the one capability that a node's hardware may lack


class Bar(StrEnum):
    """Why a node is barred, most hopeful first: a task that is barred everywhere is shown its first."""

    RESTING = "resting"  # the node, or the task on it, for a short time after a loss
    DISK_FULL = "disk_full"  # what runs there waits for room
    QUARANTINED = "quarantined"
    NOT_APPLYING = "not_applying"
    REFUSED = "refused"  # the node could not read the task
    NOT_UNDERSTOOD = "not_understood"  # its capabilities do not cover the task's spec


@dataclass(frozen=True)
class Host:
    """A node that is ready. `bar` bars every task from it; on probation (`tried`) it takes one task, none while `busy`."""

    id: str
    boot_id: str
    capabilities: frozenset[str]
    losses: int = 0
    bar: Bar | None = None
    tried: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Asker:
    """A waiting task: the capabilities it needs, its faults by node, and the nodes that it fits."""

    id: str
    needs: frozenset[str]
    faults: Mapping[str, Fault]
    fits: Collection[str]


Bars = dict[str, dict[str, Bar]]  # by task and node


def bars(hosts: Sequence[Host], askers: Sequence[Asker], now: datetime) -> Bars:
    """The bars of each task, by node that it fits. Tasks without a bar are left out."""
    understood: dict[tuple[frozenset[str], frozenset[str]], bool] = {}
    found: Bars = {}
    for asker in askers:
        for host in hosts:
            pair = asker.needs, host.capabilities
            if pair not in understood:
                understood[pair] = asker.needs <= host.capabilities
            bar = host.bar or _own_bar(host, asker.faults.get(host.id), now)
            if not understood[pair]:
                bar = Bar.NOT_UNDERSTOOD
            if bar is not None and host.id in asker.fits:
                found.setdefault(asker.id, {})[host.id] = bar
    for host, chosen in _tries(hosts, askers, found):
        for asker in askers:
            if asker.id != chosen and host.id in asker.fits:
                found.setdefault(asker.id, {}).setdefault(host.id, Bar.QUARANTINED)
    return found


def _own_bar(host: Host, fault: Fault | None, now: datetime) -> Bar | None:
    if fault is None:
        return None
    if fault.refused_by == host.boot_id:
        return Bar.REFUSED
    return Bar.RESTING if fault.rest_until is not None and fault.rest_until > now else None


def _tries(hosts: Sequence[Host], askers: Sequence[Asker], found: Bars) -> Iterator[tuple[Host, str | None]]:
    """The one task that each node on probation may get: the one lost there least, ties in queue order."""
    for host in hosts:
        if host.tried:
            may = [asker for asker in askers if host.id in asker.fits and host.id not in found.get(asker.id, ())]
            least = min(may, key=lambda asker: _often(asker, host), default=None)
            yield host, None if host.busy or least is None else least.id


def _often(asker: Asker, host: Host) -> int:
    fault = asker.faults.get(host.id)
    return fault.losses + fault.missed if fault is not None else 0


def burden(host: Host, asker: Asker) -> int:
    """Factor on a task's duration on a node that lost it, or lately lost others, so that the plan prefers other nodes."""
    return 1 + host.losses + _often(asker, host)


def capability_words(missing: Collection[str], service: str, known: Collection[str], workers: Mapping[str, str]) -> str:
    """Message: which workers could train a task that no node understands. `known` is what this version of the service
    understands, `workers` the versions of the nodes by name."""
    if set(missing) == {FP8} and FP8 in known:
        return (
            "No node computes in fp8: that takes GPUs of compute capability 8.9 or later (Ada, Hopper, Blackwell) and a worker "
            f"of motet {service} or newer on them; take precision bf16, or nf4 for less memory, or wait until one joins."
        )
    fields = sorted({name for name in missing if not any(other.startswith(name + "=") for other in missing)})
    which = ", ".join(fields[:3]) + (f" and {len(fields) - 3} more" if len(fields) > 3 else "")
    version = f"{service} or newer" if set(missing) <= set(known) else f"a version after {service}, this service's"
    there = ", ".join(sorted({f"{name} has {found}" for name, found in workers.items()})[:3])
    return (
        f"No node understands {which} of its spec: that takes a worker of motet {version} ({there}); it starts once one joins."
    )
