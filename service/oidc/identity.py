"""Whom an identity provider vouches for, and how a sign-in fails."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.http.problems import Forbidden, Unavailable


class ProviderAway(Unavailable):
    code, title = "identity_provider_unavailable", "The identity provider cannot be asked now"


class SignInRefused(Forbidden):
    """`refusal`: the provider's own error code, where it gave one."""

    code, title = "sign_in_refused", "The sign-in did not succeed"

    def __init__(self, detail: str, refusal: str = "") -> None:
        super().__init__(detail)
        self.refusal = refusal


class KeyUnknown(Exception):
    """An ID token names a key that is not among those known: the provider may have rotated them."""


@dataclass(frozen=True)
class Identity:
    """Users are known by issuer and subject. `email`: only an address that the provider calls verified."""

    issuer: str
    subject: str
    email: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """How the audit log names them. A name is what its owner chose, so the subject stands beside it."""
        return self.email or (f"{self.name} ({self.subject})" if self.name else self.subject)


def identity_of(claims: Mapping[str, Any], more: Mapping[str, Any]) -> Identity:
    """The person of verified claims; `more` are those of the user info endpoint, for what the token leaves out."""
    found = {**more, **claims}
    email = found.get("email") if found.get("email_verified") in (True, "true") else None
    name = found.get("name") or found.get("preferred_username")
    return Identity(
        issuer=claims["iss"],
        subject=claims["sub"],
        email=email if isinstance(email, str) and 0 < len(email) <= 320 and email.isprintable() else None,
        name="".join(letter for letter in name if letter.isprintable())[:255] if isinstance(name, str) and name else None,
    )
