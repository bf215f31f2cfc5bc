"""Types of settings, with what makes a variable's text one of them. Knows no variable."""

import base64
import binascii
import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

MIN_SECRET = 32  # characters; 256 bits as base64 or hex are longer
MIB = 2**20
SMTP_PORTS = {"smtp+starttls": 587, "smtps": 465, "smtp": 25}  # by the URL's scheme
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[!-~]([ -~]*[!-~])?")
_PASSWORD, _ODD = re.compile(r"^([^:/]+://[^:/@]*:)([^@]*)(?=@)"), re.compile(r"[/?#\[\]\s]")  # as SQLAlchemy finds it
DIFFERENT = 10  # distinct characters; a random secret of that length has more


def long_enough(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_SECRET:
        raise ValueError(
            f"needs at least {MIN_SECRET} characters, has {len(secret)}; "
            "make one with: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


def _psycopg(url: str) -> str:
    """The URL with these letters of the password percent-encoded: SQLAlchemy takes them as they are, and libpq and `urlsplit`
    would read a part of the password as the host."""
    if not url.startswith("postgresql+psycopg://"):
        raise ValueError("must start with postgresql+psycopg://")
    return _PASSWORD.sub(lambda found: found[1] + _ODD.sub(lambda odd: quote(odd[0], safe=""), found[2]), url)


def is_loopback(host: str) -> bool:
    """Whether a server on this address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listed(value: object) -> object:
    """Split a variable's text at commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def networks_or_none(value: object) -> object:
    """Split a variable's text at commas; `none` means no networks, an empty text means not set (None)."""
    if not isinstance(value, str):
        return value
    return () if value.strip().lower() == "none" else listed(value) or None


def _issuer(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("must start with https://")
    if parts.query or parts.fragment:
        raise ValueError("may have no query and no fragment")
    return url


def _otlp_endpoint(url: str) -> str:
    if any(letter in url for letter in "@?#"):  # of any part: urlsplit takes what follows a / in a password for the path
        raise ValueError(
            "may hold no user name, password, query or fragment; credentials go into MOTET_OTLP_HEADERS, such as "
            "authorization=Bearer ..., or authorization=Basic ... with the base64 of user:password"
        )
    try:
        whole = urlsplit(url).port != 0 and all("!" <= letter <= "~" for letter in url)
    except ValueError:  # its text would tell the port
        whole = False
    if not whole:
        raise ValueError("must be of the form https://host:port/path, in printable ASCII")
    return url


def header_fields(said: SecretStr) -> dict[str, str]:
    """The header fields of `name=value,name=value`. Raises ValueError for another form."""
    pairs = [part.strip().partition("=") for part in said.get_secret_value().split(",") if part.strip()]
    if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, _, value in pairs):
        raise ValueError("must be of the form name=value,name=value, in printable ASCII")
    return {name: value for name, _, value in pairs}


def _header_fields(said: SecretStr) -> SecretStr:
    header_fields(said)
    return said


def _webhook_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        whole = parts.port != 0 and all("!" <= letter <= "~" for letter in url)
    except ValueError:
        whole = False
    if not whole or "@" in parts.netloc or parts.fragment:
        raise ValueError(
            "must be of the form https://host:port/path, in printable ASCII, without user name, password and fragment"
        )
    return url


def _webhook_secret(secret: SecretStr) -> SecretStr:
    said = secret.get_secret_value()
    try:
        key = base64.b64decode(said.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not said.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ValueError(
            "must be whsec_ and 24 to 64 random bytes in base64; make one with: python -c "
            "'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(32)).decode())'"
        )
    return secret


def state_home() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "motet"


def wrong_variable(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    """What pydantic says of a setting, as a sentence that names its variable."""
    message = message.removeprefix("Value error, ")
    if not loc:
        return message
    variable = str(loc[0]).upper()
    name = variable if variable.startswith("HF_") else f"MOTET_{variable}"
    return f"{name} is not set" if kind == "missing" else f"{name}: {message}"


def _smtp(url: SecretStr) -> SecretStr:
    parts = urlsplit(url.get_secret_value())
    try:
        whole = parts.scheme in SMTP_PORTS and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:  # of the port; its text would tell a part of the password
        whole = False
    if not whole:
        schemes = ", ".join(f"{scheme}://host" for scheme in SMTP_PORTS)
        raise ValueError(f"must be {schemes}; user:password@ before the host, in which /, @ and : are percent-encoded")
    return url


DatabaseUrl = Annotated[str, AfterValidator(_psycopg)]
Secret = Annotated[SecretStr, AfterValidator(long_enough)]
Seconds = Annotated[float, Field(gt=0)]
Wait = Annotated[float, Field(ge=0.1, le=86_400)]
Port = Annotated[int, Field(ge=1, le=65535)]
Limit = Annotated[int, Field(ge=1)]
Days = Annotated[float, Field(ge=0, le=36_500)]
StorageUrl = Annotated[str, Field(pattern=r"^(file:///|(s3|gs|az)://[^/]).*")]
HttpUrlText = Annotated[str, Field(pattern=r"^https?://[^/]+")]
SmtpUrl = Annotated[SecretStr, AfterValidator(_smtp)]
OtlpEndpoint = Annotated[HttpUrlText, AfterValidator(_otlp_endpoint)]
OtlpHeaders = Annotated[SecretStr, AfterValidator(_header_fields)]
WebhookUrl = Annotated[HttpUrlText, AfterValidator(_webhook_url)]
WebhookSecret = Annotated[SecretStr, AfterValidator(_webhook_secret)]  # of Standard Webhooks
Issuer = Annotated[HttpUrlText, AfterValidator(_issuer)]  # of OpenID Connect
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(listed)]
