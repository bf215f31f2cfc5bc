"""Each tenant's use of the fleet, from the placements' rows: the input of fair share. Weighs nothing and decides nothing.

The sums equal those of `fair_share.decayed` and `fair_share.entered` applied placement by placement.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Double, case, cast, extract, func, literal, or_, select
from sqlalchemy.orm import Session

from service.database.engine import clock
from service.fleet.models import PLACED_ON_TYPE, Node, Placement
from service.lru_cache import LruCache
from service.scheduler.core.fair_share import Share, worth
from service.scheduler.core.problem import UNITS, Limit, limit_units
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.state.executors import executor_of
from service.scheduler.state.live_executors import LiveExecutors
from service.tasks.models import Task
from service.tenants.models import Tenant

ENTRY_SECONDS = 300.0  # seconds that a start adds at once (the entry penalty)
HALVES = 12  # half-lives after which use counts nothing


def capacity(nodes: Iterable[Node], closed: Collection[str], busy: Mapping[str, int]) -> dict[str, int]:
    """GPUs by type that tenants share: all of the open nodes, and of `closed` ones, which take nothing new, those that tasks
    hold (`busy`, by node). A type without any is listed with 0."""
    found: Counter[str] = Counter()
    for node in nodes:
        found[node.device_type] += busy.get(node.id, 0) if node.id in closed else len(node.devices)
    return dict(found)


def shares(
    session: Session, now: datetime, half_life: float, held: Mapping[str, Mapping[str, float]], wanted: Mapping[str, float]
) -> list[Share]:
    """Every tenant that holds, waits or has used something. `held`: GPUs by tenant and type; `wanted`: by tenant, what its
    running and waiting tasks ask for at their narrowest, in GPUs of the fastest type."""
    use = _use(session, now, half_life)
    active = {*held, *wanted}
    rows = session.execute(select(Tenant.id, Tenant.weight).where(Tenant.id.in_({*active, *use})))
    weights = {id: weight for id, weight in rows}
    return [
        Share(
            tenant,
            weight,
            dict(held.get(tenant, {})),
            use.get(tenant, {}),
            tenant in active,
            wanted.get(tenant, 0),
        )
        for tenant, weight in sorted(weights.items())
    ]


def _use(session: Session, now: datetime, half_life: float) -> dict[str, dict[str, float]]:
    """Decayed use by tenant and device type, in GPUs."""

    def kept(moment: ColumnElement[datetime]) -> ColumnElement[float]:
        """What is left now of one unit of use at `moment`."""
        return func.power(0.5, extract("epoch", literal(now) - moment) / half_life)

    stepped = Placement.train_seconds + Placement.evaluation_seconds
    part = case((stepped > 0, func.least(1.0, Placement.gpu_seconds / func.nullif(stepped, 0.0))), else_=1.0)
    gpus = cast(func.cardinality(Placement.device_indexes), Double) * part  # of shared steps, its part by tokens
    began, ended = kept(Placement.created_at.expression), kept(func.coalesce(Placement.ended_at, now))
    entry = 1 - 0.5 ** (ENTRY_SECONDS / half_life)
    rows = session.execute(
        select(Task.tenant_id, PLACED_ON_TYPE, func.sum(gpus * (ended - began + entry * began)))
        .join(Task, Task.id == Placement.task_id)
        .join(Node, Node.id == Placement.node_id)
        .where(or_(Placement.ended_at.is_(None), Placement.ended_at > now - timedelta(seconds=HALVES * half_life)))
        .where(PLACED_ON_TYPE.is_not(None))
        .group_by(Task.tenant_id, PLACED_ON_TYPE)
    )
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for tenant, of, used in rows:
        found[tenant][of] = float(used)
    return found


def limits(session: Session, tenants: Iterable[str], beside: Mapping[str, int]) -> tuple[Limit, ...]:
    """The quotas of running GPUs of those tenants that have one, less what they hold `beside` the plan's nodes."""
    rows = session.execute(select(Tenant.id, Tenant.running_gpus_quota).where(Tenant.id.in_(list(tenants))).order_by(Tenant.id))
    quotas = [(tenant, gpus, min(gpus, beside.get(tenant, 0))) for tenant, gpus in rows if gpus is not None]
    return tuple(Limit(tenant, gpus - held, held) for tenant, gpus, held in quotas)


def held_on(session: Session, unreadable: Iterable[Node]) -> Counter[str]:
    """By tenant, the GPUs that its tasks hold on unreadable nodes, which are in no plan: each a whole one of the fastest type,
    since their types may be unknown and a quota must hold."""
    there = select(Task.tenant_id, Placement.node_id, Placement.device_indexes).join(Task, Task.id == Placement.task_id)
    there = there.where(Placement.ended_at.is_(None), Placement.node_id.in_([node.id for node in unreadable]))
    held = {(tenant, node, index) for tenant, node, indexes in session.execute(there) for index in indexes}
    return Counter(tenant for tenant, _, _ in held)


def running_gpus(session: Session, tenant: str) -> int:
    """GPUs that the tenant's tasks hold now, as a plan counts them against its quota: weighted by speed as devices of the
    fleet's fastest type, and of those that tenants share its part; rounded up. What a lost node held counts no more.
    The session must see all tenants' rows."""
    ready = session.scalars(select(Node).where(Node.status == "ready")).all()
    by_id = {node.id: node for node in ready if not node.unreadable}
    there = select(Placement, Task).join(Task, Task.id == Placement.task_id).where(Placement.ended_at.is_(None))
    there = there.where(Placement.node_id.in_(by_id))
    mine = {executor_of(placed) for placed, _ in session.execute(there.where(Task.tenant_id == tenant))}
    beside = held_on(session, [node for node in ready if node.unreadable])[tenant]
    if not mine:
        return beside
    rows = session.execute(there.where(Placement.node_id.in_({node for node, _ in mine})))
    live = [(placed, task) for placed, task in rows if executor_of(placed) in mine]
    tasks = Counter(executor_of(placed) for placed, _ in live)
    sharing = [task for placed, task in live if tasks[executor_of(placed)] > 1]  # the width of others makes no difference
    worths = worth(node.device_type for node in by_id.values())
    each = {id: limit_units(worths[node.device_type]) for id, node in by_id.items()}
    executors = LiveExecutors(by_id, live, Workload(session, sharing, LruCache()), clock(session), ())
    return math.ceil(executors.limit_units(tenant, each) / UNITS) + beside
