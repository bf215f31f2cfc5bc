"""Verifies ID tokens: signature, algorithm, issuer, audience, times, nonce (OpenID Connect Core, 3.1.3.7). Knows no network."""

import hmac
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from service.oidc.identity import KeyUnknown, SignInRefused

ALGORITHMS = (  # asymmetric ones alone: neither `none`, nor an HMAC under a public key
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
LEEWAY_SECONDS = 60  # between the provider's clock and ours
OLDEST_SECONDS = 600  # of a token that is said to be new
_REGISTRY = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)  # providers put headers of their own in


def verified_claims(
    token: str, published: Mapping[str, Any], issuer: str, client_id: str, nonce: str | None, now: float
) -> Mapping[str, Any]:
    """The token's claims. `published`: the provider's JWK set; `nonce`: None where the flow has none.

    Raises KeyUnknown, SignInRefused.
    """
    try:
        decoded = jwt.decode(token, _signing_keys(published), registry=_REGISTRY)
    except InvalidKeyIdError:
        raise KeyUnknown from None
    except (JoseError, ValueError) as error:
        raise _refused(f"its signature is not good ({type(error).__name__})") from None
    if "crit" in decoded.header:
        raise _refused("it has critical headers, which nobody here understands")
    claims = decoded.claims
    if claims.get("iss") != issuer:
        raise _refused("its issuer is another")
    _check_audience(claims, client_id)
    _check_times(claims, now)
    if nonce is not None and not _same(claims.get("nonce"), nonce):
        raise _refused("its nonce is not that of this sign-in")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise _refused("it names no subject")
    return claims


def _signing_keys(published: Mapping[str, Any]) -> KeySet:
    """The set's keys for signatures. Raises JoseError, ValueError."""
    listed = published.get("keys")
    if not isinstance(listed, list) or not all(isinstance(key, dict) for key in listed):
        raise ValueError("the provider's key set is not one")
    return KeySet.import_key_set({"keys": [key for key in listed if key.get("use") in (None, "sig")]})


def _check_audience(claims: Mapping[str, Any], client_id: str) -> None:
    said = claims.get("aud")
    audience = said if isinstance(said, list) else [said]
    if client_id not in audience:
        raise _refused("it is for another client")
    if (len(audience) > 1 or "azp" in claims) and claims.get("azp") != client_id:
        raise _refused("another client was authorized with it")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    expires, issued, begins = (_number(claims.get(name)) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise _refused("it does not say from when until when it holds")
    if now >= expires + LEEWAY_SECONDS:
        raise _refused("it has expired")
    if not now - OLDEST_SECONDS <= issued <= now + LEEWAY_SECONDS:
        raise _refused("it was not made just now; compare this machine's clock with the provider's")
    if "nbf" in claims and (begins is None or begins > now + LEEWAY_SECONDS):
        raise _refused("it does not hold yet")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _same(said: Any, expected: str) -> bool:
    return isinstance(said, str) and hmac.compare_digest(said.encode(), expected.encode())


def _refused(why: str) -> SignInRefused:
    return SignInRefused(f"The identity provider's ID token is not accepted: {why}.")
