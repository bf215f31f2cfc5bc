"""Probes: /livez says that the process answers, /readyz that its database does too. Neither checks Redis: it is optional."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError

from service.app_state import SystemDb
from service.http.problems import ProblemBody, Unavailable
from service.schema import schema_upgrade

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class NotReady(Unavailable):
    code = "not_ready"


@router.get("/livez", operation_id="livez", summary="Whether the process answers")
def livez() -> Health:
    return Health()


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Whether requests can be served",
    responses={503: {"model": ProblemBody, "description": "The database is away, or behind this code's migrations"}},
)
def readyz(db: SystemDb) -> Health:
    try:
        schema_upgrade.check_revision(db.engine)
    except OperationalError:
        raise NotReady("The database does not answer.") from None
    except schema_upgrade.SchemaBehind as error:
        raise NotReady(f"Not to be served: {error}.") from None
    return Health()
