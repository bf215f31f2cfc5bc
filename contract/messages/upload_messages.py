"""Messages of uploads and downloads: the request for a grant, the grant, and a header."""

from typing import Annotated

from pydantic import Field

from contract.strict import Message, Sha256

FOLLOWS_REDIRECTS = "X-Motet-Follows-Redirects"  # a worker's header: a download may be a redirect to a presigned URL


class UploadRequest(Message):
    """`direct`: the sender can put parts to presigned URLs of a bucket and call `complete` afterwards."""

    fence: int
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]
    direct: bool = False


class UploadPart(Message):
    """A range of the object's bytes and the presigned URL to PUT it to, without the grant's headers."""

    url: str
    offset: int
    bytes: int


class UploadGrant(Message):
    """Where to PUT the object. With `exists` storage already holds it and nothing is to be sent.

    Either `url` takes the whole object, with `headers`; or each of `parts` takes its range, and then a POST to `complete`, with
    `headers`, has the service verify and keep the object."""

    exists: bool
    url: str | None = None
    headers: dict[str, str] = Field(default={})
    parts: list[UploadPart] = Field(default=[])
    complete: str | None = None
