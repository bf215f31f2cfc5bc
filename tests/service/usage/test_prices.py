"""What GPUs cost: by type and day, in usage, exports and estimates."""

import csv
import io
from datetime import UTC, date, datetime

import pytest
from sqlalchemy import delete, select, update

from service.fleet.models import Node, Placement
from service.usage.models import GpuPrice
from service.usage.prices import Prices
from service.usage.usage_queries import DayUsage
from tests.service.sample_tasks import placement


@pytest.fixture(autouse=True)
def no_prices(database):
    with database.begin() as session:
        session.execute(delete(GpuPrice))


@pytest.mark.parametrize(
    ("kind", "day", "hour"), [("A", 1, 9.0), ("A", 5, 2.0), ("A", 6, 2.0), ("A", 10, 3.0), ("B", 10, 9.0), ("C", 31, 0.0)]
)
def test_the_price_of_a_day(kind, day, hour):
    since = {"A": ((date(2026, 1, 5), 2.0), (date(2026, 1, 10), 3.0)), "C": ((date(2026, 1, 1), 0.0),)}
    assert Prices(since, 9.0).per_hour(kind, date(2026, 1, day)) == hour


def test_a_total_with_a_part_that_has_no_price_is_unknown():
    known, other, idle = (DayUsage(date(2026, 1, 1), kind, 1, 0, 0, s) for kind, s in (("A", 1800.0), ("B", 60.0), ("B", 0.0)))
    prices = Prices({"A": ((date(2025, 1, 1), 2.0),)}, None)
    assert (prices.total([known]), prices.total([known, idle]), prices.total([known, other])) == (1.0, 1.0, None)
    assert Prices({}, None).total([]) is None


def used(tenant, database, kind, moment, seconds):
    task = tenant.task(name="=1+1")["id"]
    with database.begin() as session:
        id = placement(session, task, tokens=10, gpu_seconds=seconds, devices=2, at=moment)
        of = select(Placement.node_id).where(Placement.id == id).scalar_subquery()
        session.execute(update(Node).where(Node.id == of).values(devices=[{"index": 0, "type": kind}]))
    return task


def test_costs_in_usage_and_as_csv(tenant, admin, database):
    first = used(tenant, database, "H100", datetime(2026, 3, 1, 23, tzinfo=UTC), 1800.0)
    second = used(tenant, database, "H100", datetime(2026, 3, 2, 1, tzinfo=UTC), 3600.0)

    def usage():
        return tenant.get("/v1/usage", params={"month": "2026-03"}).json()

    assert (usage()["total"]["cost"], [task["cost"] for task in usage()["data"]]) == (None, [None, None])
    for day, hour in (("2026-01-01", 2.0), ("2026-03-02", 9.0), ("2026-03-02", 3.0)):  # the last one replaces
        answer = admin.put("/v1/admin/prices", json={"device_type": "H100", "per_hour": hour, "from_day": day})
        assert answer.status_code == 200, answer.text
    found = usage()
    assert (found["total"]["cost"], found["currency"]) == (pytest.approx(2.0 + 6.0), "USD")
    assert [(task["task_id"], task["cost"]) for task in found["data"]] == [(second, 6.0), (first, 2.0)]
    assert [(day["day"], day["cost"]) for day in found["days"]] == [("2026-03-01", 2.0), ("2026-03-02", 6.0)]
    told = tenant.get("/v1/usage/costs.csv", params={"month": "2026-03"})
    assert told.headers["content-disposition"] == 'attachment; filename="costs-2026-03.csv"'
    lines = list(csv.DictReader(io.StringIO(told.text)))
    assert [(line["day"], line["task_id"], line["price_per_hour"], float(line["cost"])) for line in lines] == [
        ("2026-03-01", first, "2.0", 2.0),
        ("2026-03-02", second, "3.0", 6.0),
    ]
    assert {line["task"] for line in lines} == {"'=1+1"}  # no formula
    taken = admin.delete("/v1/admin/prices", params={"device_type": "H100", "from_day": "2026-03-02"})
    assert (taken.status_code, taken.json()["per_hour"]) == (200, 3.0)
    assert usage()["total"]["cost"] == pytest.approx(2.0 + 4.0)


def test_the_list_and_who_may_set_it(tenant, admin):
    price = {"device_type": "L4", "per_hour": 0.5, "from_day": "2026-01-01"}
    assert tenant.put("/v1/admin/prices", json=price).status_code == 403
    made = admin.put("/v1/admin/prices", json=price).json()
    listed = tenant.get("/v1/prices").json()
    assert (listed["data"], listed["default_per_hour"]) == ([made], None)
    today = admin.put("/v1/admin/prices", json={"device_type": "L4", "per_hour": 1}).json()
    assert date.fromisoformat(today["from_day"]) > date(2026, 1, 1)
    gone = admin.delete("/v1/admin/prices", params={"device_type": "L5", "from_day": "2026-01-01"})
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    for wrong in ({"per_hour": -1}, {"per_hour": 2e6}, {"device_type": ""}, {"from_day": "yesterday"}):
        assert admin.put("/v1/admin/prices", json=price | wrong).status_code == 422
