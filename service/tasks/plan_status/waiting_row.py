"""The form of what is stored of why a task waits, by which a damaged one is told."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("says no time zone")
    return text


_Moment = Annotated[str, AfterValidator(_moment)]


class WaitingRow(BaseModel):
    """What the service writes of why a task waits (unplanned_reasons.py). What has a default not every version does."""

    code: str
    sentence: str
    place: int | None
    node: str | None
    expected_start: _Moment | None
    expected_end: _Moment | None
    late_seconds: float | None
    expected_start_interval: list[_Moment] | None = None
    expected_end_interval: list[_Moment] | None = None
    gpus: int | None = None
