"""The identity provider over HTTP: its metadata and keys, cached; its token, device and user info endpoints. Blocking.

Endpoints are those of the discovery document, which comes from the issuer that the operator named; each must be https, or have
the issuer's own origin.
"""

import json
import logging
import pkgutil
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from service.http.outbound import Failed, Outbound, Refused
from service.oidc.identity import Identity, KeyUnknown, ProviderAway, SignInRefused, identity_of
from service.settings import Settings

log = logging.getLogger(__name__)

_VERIFY = "service.oidc.id_token:verified_claims"  # loads joserfc, which nobody needs who signs in with keys
SCOPES = "openid profile email"
_SECONDS = 10.0  # of one call
_MOST = 2**20  # bytes of an answer
_METADATA_SECONDS, _KEYS_SECONDS = 3600.0, 300.0  # a key that the provider withdrew is refused after the latter
_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


@dataclass(frozen=True)
class _Cached:
    value: dict[str, Any]
    until: float


class Provider:
    """The provider of the settings; `name` is what people call it. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        assert settings.oidc_issuer is not None, "the settings name an issuer"
        assert settings.oidc_client_id is not None, "the settings check it"
        self.issuer, self.client_id = settings.oidc_issuer, settings.oidc_client_id
        self.name = settings.oidc_name or urlsplit(self.issuer).hostname or self.issuer
        secret = settings.oidc_client_secret
        self._secret = secret.get_secret_value() if secret is not None else None
        self._verify = pkgutil.resolve_name(_VERIFY)
        self._http = Outbound(seconds=_SECONDS)
        self._lock = threading.Lock()
        self._cache: dict[str, _Cached] = {}

    def endpoint(self, name: str) -> str:
        """An endpoint's address. Raises SignInRefused if the provider has none of this name, ProviderAway."""
        found = self._metadata().get(name)
        if not isinstance(found, str):
            raise SignInRefused(f"The identity provider {self.name} offers no {name}.")
        parts, issuer = urlsplit(found), urlsplit(self.issuer)
        if parts.scheme != "https" and (parts.scheme, parts.netloc) != (issuer.scheme, issuer.netloc):
            raise ProviderAway(f"The identity provider's {name} is not https: {found}")
        return found

    def says(self, name: str) -> Any:
        """A member of the metadata, None if it is not there."""
        return self._metadata().get(name)

    def tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        """The token endpoint's answer. Raises SignInRefused with the provider's error code, ProviderAway."""
        return self._post("token_endpoint", form)

    def authorize_device(self) -> dict[str, Any]:
        """The device authorization endpoint's answer (RFC 8628, 3.2)."""
        return self._post("device_authorization_endpoint", {"scope": SCOPES})

    def identity(self, tokens: Mapping[str, Any], nonce: str | None) -> Identity:
        """Whom the token endpoint's answer vouches for. Raises SignInRefused, ProviderAway."""
        token = tokens.get("id_token")
        if not isinstance(token, str):
            raise SignInRefused("The identity provider sent no ID token.")
        try:
            claims = self._verified(token, nonce, fresh=False)
        except KeyUnknown:
            try:
                claims = self._verified(token, nonce, fresh=True)
            except KeyUnknown:
                raise SignInRefused("The ID token is signed with a key that the identity provider does not publish.") from None
        return identity_of(claims, {} if "email" in claims else self._user_info(tokens, claims["sub"]))

    def _verified(self, token: str, nonce: str | None, fresh: bool) -> Mapping[str, Any]:
        claims: Mapping[str, Any] = self._verify(token, self._keys(fresh), self.issuer, self.client_id, nonce, time.time())
        return claims

    def _user_info(self, tokens: Mapping[str, Any], subject: str) -> Mapping[str, Any]:
        """The claims of the user info endpoint, where there is one: providers may leave the address out of the token."""
        access = tokens.get("access_token")
        if not isinstance(access, str) or self.says("userinfo_endpoint") is None:
            return {}
        said = self._get(self.endpoint("userinfo_endpoint"), {"Authorization": f"Bearer {access}"})
        if said.get("sub") != subject:
            raise SignInRefused("The identity provider told about another person than its ID token.")
        return said

    def _metadata(self) -> dict[str, Any]:
        def fetch() -> dict[str, Any]:
            said = self._get(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if said.get("issuer") != self.issuer:
                raise ProviderAway(f"The identity provider calls itself {said.get('issuer')!r}: set MOTET_OIDC_ISSUER to that.")
            return said

        return self._cached("metadata", fetch, _METADATA_SECONDS)

    def _keys(self, fresh: bool) -> dict[str, Any]:
        return self._cached("keys", lambda: self._get(self.endpoint("jwks_uri")), _KEYS_SECONDS, fresh)

    def _cached(self, name: str, fetch: Callable[[], dict[str, Any]], seconds: float, fresh: bool = False) -> dict[str, Any]:
        """The cached value; where the provider is away, also one that is due."""
        with self._lock:
            known = self._cache.get(name)
        if known is not None and not fresh and time.monotonic() < known.until:
            return known.value
        try:
            value = fetch()
        except ProviderAway as error:
            if known is None or fresh:
                raise
            log.warning("the identity provider's %s are taken from the cache: %s", name, error.detail)
            return known.value
        with self._lock:
            self._cache[name] = _Cached(value, time.monotonic() + seconds)
        return value

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            answer = self._http.get(url, {"Accept": "application/json", **(headers or {})}, _MOST, trusted=url)
        except (Failed, Refused) as error:
            raise ProviderAway(f"{url} does not answer: {error}") from None
        if answer.status != 200:
            raise ProviderAway(f"{url} answered {answer.status}.")
        return _json(answer.body, url)

    def _post(self, name: str, form: Mapping[str, str]) -> dict[str, Any]:
        url, headers, sent = self.endpoint(name), dict(_FORM), {**form, "client_id": self.client_id}
        if self._secret is not None:
            methods = self.says("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                both = f"{quote(self.client_id, safe='')}:{quote(self._secret, safe='')}"
                headers["Authorization"] = "Basic " + b64encode(both.encode()).decode()
            else:
                sent["client_secret"] = self._secret
        try:
            answer = self._http.post(url, urlencode(sent).encode(), headers, most=_MOST, trusted=url)
        except (Failed, Refused) as error:
            raise ProviderAway(f"{url} does not answer: {error}") from None
        if answer.status == 200:
            return _json(answer.body, url)
        if answer.status >= 500 or answer.status == 429:
            raise ProviderAway(f"{url} answered {answer.status}.")
        said = _json(answer.body, url)
        refusal = str(said.get("error", answer.status))[:100]
        raise SignInRefused(f"The identity provider refused: {refusal}.", refusal)


def _json(body: bytes, url: str) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ProviderAway(f"{url} did not answer with a JSON object of at most {_MOST} bytes.")
    return said
