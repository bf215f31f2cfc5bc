"""Fields of OpenAI's endpoint graders: the address of a tenant's HTTP endpoint, and the headers that it wants. Pure; calls
nothing."""

from typing import Annotated

from pydantic import AfterValidator, Field

from contract.strict import STORABLE

HIDDEN = "**********"  # stands for a header's value wherever a spec is stored or shown
MOST_HEADERS = 16
_OURS = ("host", "connection", "content-length", "content-type", "transfer-encoding")  # the caller sets these


def _sendable(name: str) -> str:
    if name.lower() in _OURS:
        raise ValueError(f"is '{name}', which the service sets by itself; leave it out")
    return name


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"), AfterValidator(_sendable)]
# printable ASCII, and no white space at its ends: what every server reads alike
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,4094}[!-~])?$")]
Url = Annotated[str, Field(pattern=r"^https?://", max_length=2048), STORABLE]


def _told_apart(headers: dict[str, str]) -> dict[str, str]:
    folded = [name.lower() for name in headers]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise ValueError(f"names {', '.join(twice)} twice: capitals make no difference in a header's name")
    return headers


Headers = Annotated[dict[HeaderName, HeaderValue], Field(max_length=MOST_HEADERS), AfterValidator(_told_apart)]
