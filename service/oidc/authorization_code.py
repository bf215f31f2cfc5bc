"""The authorization code flow with PKCE (RFC 7636), state and nonce: where a browser goes, and what it comes back with.

What must be known on the way back travels sealed in the browser's own cookie: any process can receive it; nothing is stored.
"""

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass
from hashlib import sha256
from urllib.parse import urlencode

from service.oidc.identity import Identity, SignInRefused
from service.oidc.provider import SCOPES, Provider
from service.secret_box import SecretBox, Unsealable

LASTS_SECONDS = 600
PURPOSE = "sign-in under way"  # of the box that seals it


@dataclass(frozen=True)
class PendingSignIn:
    """What the browser's cookie keeps until it comes back. `then`: a page of ours; `invitation`: one to accept."""

    state: str
    nonce: str
    verifier: str
    begun_at: float
    then: str
    invitation: str | None = None

    def sealed(self, box: SecretBox) -> str:
        return box.seal(json.dumps(asdict(self))).decode()

    @classmethod
    def opened(cls, sealed: str, box: SecretBox) -> "PendingSignIn":
        """Raises SignInRefused if it is damaged, made elsewhere, or older than LASTS_SECONDS."""
        try:
            pending = cls(**json.loads(box.open(sealed.encode(errors="replace"))))
        except (Unsealable, ValueError, TypeError):
            raise _start_again("was not begun in this browser") from None
        if not 0 <= time.time() - pending.begun_at <= LASTS_SECONDS:
            raise _start_again(f"took longer than {LASTS_SECONDS // 60} minutes")
        return pending


def begin(provider: Provider, redirect_uri: str, then: str, invitation: str | None = None) -> tuple[str, PendingSignIn]:
    """The provider's page to send the browser to, and what to remember. Raises ProviderAway."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": redirect_uri,
        "scope": SCOPES,
        "state": state,
        "nonce": nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    page = provider.endpoint("authorization_endpoint")
    address = page + ("&" if "?" in page else "?") + urlencode(query)
    return address, PendingSignIn(state, nonce, verifier, time.time(), then, invitation)


def finish(
    provider: Provider, redirect_uri: str, pending: PendingSignIn, state: str, code: str, error: str, issuer: str | None
) -> Identity:
    """Whom the provider vouches for, from what it sent back with the browser. Raises SignInRefused, ProviderAway.

    issuer: the answer's `iss` (RFC 9207), so that no other provider's answer is taken for this one's.
    """
    if not hmac.compare_digest(state.encode(errors="replace"), pending.state.encode()):
        raise _start_again("is not the one that this browser began last")
    if issuer is not None and issuer != provider.issuer:
        raise _start_again("was answered by another identity provider")
    if issuer is None and provider.says("authorization_response_iss_parameter_supported") is True:
        raise _start_again("does not say which identity provider answered")
    if error:
        raise SignInRefused(f"The identity provider refused: {_shown(error)}.", error)
    if not code:
        raise _start_again("came back without a code")
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": pending.verifier,
    }
    return provider.identity(provider.tokens(form), pending.nonce)


def _start_again(why: str) -> SignInRefused:
    return SignInRefused(f"This sign-in {why}. Start again.")


def _shown(error: str) -> str:
    return "".join(letter for letter in error if letter.isprintable())[:100]
