"""Messages of an upload: the request for a grant, and the grant."""

from typing import Annotated

from pydantic import Field

from contract.strict import Message, Sha256


class UploadRequest(Message):
    fence: int
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class UploadGrant(Message):
    """Where to PUT the object. With `exists` storage already holds it and nothing is to be sent."""

    exists: bool
    url: str | None = None
    headers: dict[str, str] = Field(default={})
