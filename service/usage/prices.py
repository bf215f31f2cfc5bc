"""What an hour of a GPU costs, by its type and the day: an admin's price list, and MOTET_GPU_HOUR_PRICE for other types.

A cost is worked out when it is read, by the price of the day on which the work began. Knows no HTTP.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.settings import Settings
from service.tenants.api_keys import Principal
from service.usage.models import GpuPrice
from service.usage.usage_queries import DayUsage, Period, usage_by_day_of_tasks

_HOUR = 3600.0


@dataclass(frozen=True)
class Prices:
    """`by_type`: each type's prices with the days from which they hold, ascending. `default`: of other types, earlier days."""

    by_type: Mapping[str, tuple[tuple[date, float], ...]]
    default: float | None

    def per_hour(self, device_type: str, day: date) -> float | None:
        """The price of an hour; None: there is none."""
        known = self.by_type.get(device_type, ())
        at = bisect_right([since for since, _ in known], day)
        return known[at - 1][1] if at else self.default

    def cost(self, used: DayUsage) -> float | None:
        """None: it has no price. What used no GPU costs nothing."""
        if not used.gpu_seconds:
            return 0.0
        price = self.per_hour(used.device_type, used.day)
        return None if price is None else used.gpu_seconds / _HOUR * price

    def total(self, days: Iterable[DayUsage]) -> float | None:
        """The cost of all of them; None where one has no price."""
        costs = [self.cost(one) for one in days]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) and (known or self.default is not None or self.by_type) else None


def read_prices(session: Session, settings: Settings) -> Prices:
    found: dict[str, tuple[tuple[date, float], ...]] = {}
    for one in session.scalars(select(GpuPrice).order_by(GpuPrice.device_type, GpuPrice.from_day)):
        found[one.device_type] = (*found.get(one.device_type, ()), (one.from_day, one.per_hour))
    return Prices(found, settings.gpu_hour_price)


def costs_of_tasks(
    session: Session, principal: Principal, prices: Prices, period: Period | None, task_ids: Sequence[str]
) -> dict[str, float | None]:
    """The costs of these tasks of the caller's, in the period or in all their time; None where some GPU time has no price."""
    days: dict[str, list[DayUsage]] = {id: [] for id in task_ids}
    for task_id, used in usage_by_day_of_tasks(session, principal, period, task_ids):
        days[task_id].append(used)
    return {id: prices.total(found) for id, found in days.items()}
