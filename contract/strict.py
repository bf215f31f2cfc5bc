"""Shared strictness of all messages: unknown fields are errors, values are immutable, NaN is not a number."""

from datetime import datetime
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

T = TypeVar("T")

_FIRST_YEAR = 1970  # earliest year of a timestamp: UTC cannot write year 1 at every offset
_LAST_YEAR = 2199  # latest year of a timestamp: later ones overflow a plan's seconds


class Strict(BaseModel):
    """What people write: an unknown field is a mistake and says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Message(BaseModel):
    """What programs of neighbouring versions say to each other: an unknown field is from a newer peer, and is ignored.

    Non-finite floats are null on the wire, since JSON has no NaN.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which cannot be stored")
    return text


def _near(moment: datetime) -> datetime:
    if moment.year < _FIRST_YEAR:
        raise ValueError(f"lies before the year {_FIRST_YEAR}")
    if moment.year > _LAST_YEAR:
        raise ValueError(f"lies after the year {_LAST_YEAR}")
    return moment


class _NoNull:
    """Of `T | None`, takes T alone: the default may be None, and no request may say it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        stated, _ = get_args(source)
        return handler.generate_schema(stated)


NO_BOOL = BeforeValidator(_no_bool)  # for floats: pydantic alone would accept true as 1.0
STORABLE = AfterValidator(_no_nul)  # for a str
LeftOut = Annotated[T | None, _NoNull()]  # of a change: None where the field is left out; a null is refused
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Moment = Annotated[AwareDatetime, AfterValidator(_near)]
