"""The device flow (RFC 8628), for programs without a browser: a person enters a code on the provider's page, the program polls.

The service stands between program and provider: it alone knows the client's secret, and takes tokens from the provider alone.
What it must know again is sealed into the handle that the program polls with.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

from service.oidc.identity import Identity, ProviderAway, SignInRefused
from service.oidc.provider import Provider
from service.secret_box import SecretBox, Unsealable

PURPOSE = "device sign-in"  # of the box that seals the handle
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL, _SLOWER = 5, 5  # seconds: where the provider says none; and what slow_down adds


@dataclass(frozen=True)
class DeviceCode:
    """What the person needs, and the handle to poll with, every `interval` seconds for `expires_in`."""

    handle: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_in: int
    interval: int


@dataclass(frozen=True)
class Pending:
    """Nobody has said yes yet; ask again after this many seconds."""

    interval: int


def begin(provider: Provider, box: SecretBox) -> DeviceCode:
    """Raises SignInRefused, ProviderAway."""
    said = provider.authorize_device()
    code, user_code, page = (_text(said, name) for name in ("device_code", "user_code", "verification_uri"))
    expires_in, interval = _seconds(said.get("expires_in"), 600), _seconds(said.get("interval"), _INTERVAL)
    handle = box.seal(json.dumps({"code": code, "until": time.time() + expires_in, "interval": interval})).decode()
    complete = said.get("verification_uri_complete")
    return DeviceCode(handle, user_code, page, complete if isinstance(complete, str) else None, expires_in, interval)


def poll(provider: Provider, box: SecretBox, handle: str) -> Identity | Pending:
    """Raises SignInRefused once the person said no, the code expired or was used, or the handle is not ours; ProviderAway."""
    try:
        kept = json.loads(box.open(handle.encode(errors="replace")))
    except (Unsealable, ValueError):
        raise SignInRefused("This handle is not one of this service; start again.", "invalid_handle") from None
    if time.time() > kept["until"]:
        raise SignInRefused("Nobody entered the code in time; start again.", "expired_token")
    try:
        tokens = provider.tokens({"grant_type": _GRANT, "device_code": kept["code"]})
    except SignInRefused as error:
        if error.refusal == "authorization_pending":
            return Pending(kept["interval"])
        if error.refusal == "slow_down":
            return Pending(kept["interval"] + _SLOWER)
        raise
    return provider.identity(tokens, nonce=None)


def _text(said: dict[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str) or not found.isprintable():
        raise ProviderAway(f"The identity provider's device authorization has no {name}.")
    return found


def _seconds(said: Any, default: int) -> int:
    return int(said) if isinstance(said, int | float) and 0 < said <= 86_400 else default
