"""The price list: anyone reads it, an admin sets it."""

from datetime import UTC, date
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from contract.strict import STORABLE, Strict
from service.app_state import Config
from service.authentication import AdminDb, Db, Reader
from service.database.engine import clock
from service.http.problems import NotFound, shown
from service.http.response_schemas import problems
from service.usage.models import GpuPrice

router = APIRouter(prefix="/v1", tags=["usage"], responses=problems(401, 403))

DeviceType = Annotated[str, Field(min_length=1, max_length=128), STORABLE]


class NewPrice(Strict):
    device_type: DeviceType = Field(description="As nodes name it, such as `NVIDIA H100 80GB HBM3`, or `cpu`")
    per_hour: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(description="Of one GPU, in the currency")
    from_day: date | None = Field(default=None, description="In UTC; work that begins on it or later; left out, today")


class PriceResource(BaseModel):
    object: Literal["price"] = "price"
    device_type: str
    from_day: date
    per_hour: float
    currency: str


class PriceList(BaseModel):
    """All prices that were set, by type and day; `default_per_hour` is that of other types, null: these have none."""

    object: Literal["list"] = "list"
    currency: str
    default_per_hour: float | None
    data: list[PriceResource]


@router.get("/prices", operation_id="list_prices", summary="List what GPUs cost an hour")
def list_prices(reader: Reader, db: Db, settings: Config) -> PriceList:
    with db.begin() as session:
        rows = session.scalars(select(GpuPrice).order_by(GpuPrice.device_type, GpuPrice.from_day))
        found = [_resource(one.device_type, one.from_day, one.per_hour, settings.currency) for one in rows]
    return PriceList(currency=settings.currency, default_per_hour=settings.gpu_hour_price, data=found)


@router.put(
    "/admin/prices",
    operation_id="set_price",
    summary="Set what an hour of a type of GPU costs",
    description="From a day on; setting the same day again replaces its price. Costs are worked out when they are read, so a "
    "price for days that have been changes the cost of work that began on them.",
    responses=problems(422),
)
def set_price(new: NewPrice, db: AdminDb, settings: Config) -> PriceResource:
    with db.begin() as session:
        day = new.from_day or clock(session).astimezone(UTC).date()
        given = insert(GpuPrice).values(device_type=new.device_type, from_day=day, per_hour=new.per_hour)
        keys = ["device_type", "from_day"]
        session.execute(given.on_conflict_do_update(index_elements=keys, set_={"per_hour": given.excluded.per_hour}))
    return _resource(new.device_type, day, new.per_hour, settings.currency)


@router.delete(
    "/admin/prices",
    operation_id="delete_price",
    summary="Take a price back",
    description="The price before it holds again, or the default one.",
    responses=problems(404, 422),
)
def delete_price(
    db: AdminDb, settings: Config, device_type: Annotated[str, Query(max_length=128)], from_day: date
) -> PriceResource:
    with db.begin() as session:
        price = session.get(GpuPrice, (device_type, from_day), with_for_update=True) if "\0" not in device_type else None
        if price is None:
            raise NotFound(f"No price of {shown(device_type)!r} begins on {from_day}; GET /v1/prices lists them.")
        session.delete(price)
        return _resource(device_type, from_day, price.per_hour, settings.currency)


def _resource(device_type: str, day: date, per_hour: float, currency: str) -> PriceResource:
    return PriceResource(device_type=device_type, from_day=day, per_hour=per_hour, currency=currency)
