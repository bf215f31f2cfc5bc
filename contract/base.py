"""The strictness every message shares: unknown fields are errors, values never change, NaN is not a number."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """What people write: an unknown field is a mistake and says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Message(BaseModel):
    """What programs of neighbouring versions say to each other: an unknown field is from a newer peer, and is ignored.

    Non-finite floats are null on the wire, since JSON has no NaN.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
