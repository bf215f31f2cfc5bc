"""Where Redis is, as settings name it. Knows no setting."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field


def _parsed(url: str) -> str:
    """Redis' client parses it so when it is made, and its error would tell a part of the password."""
    try:
        urlsplit(url).port  # noqa: B018  (that it can be told)
    except ValueError:
        raise ValueError(
            "must be of the form redis://:password@host:port/number; of a password, the letters / ? # [ ] @ : % are "
            "percent-encoded"
        ) from None
    return url


RedisUrl = Annotated[str, Field(pattern=r"^(redis|rediss|unix)://"), AfterValidator(_parsed)]
