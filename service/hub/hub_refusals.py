"""What a hub's refusal to be written means, in words, and whether another attempt may help. Values only."""

import json
from typing import Any
from urllib.parse import urlsplit

from service.http.outbound import Fetched
from service.http.problems import Problem
from service.hub.hub_client import HubUnavailable

_SHOWN = 300  # characters of the hub's own words
_AGAIN = (408, 409, 423, 425, 429)  # besides 5xx; 409: another operation of the account is in progress
_ROOM = ("storage limit", "quota", "payment", "upgrade your plan")


class HubRefused(Problem):
    """The hub will not do it, however often it is asked. `reason` is the problem's code."""

    status, title = 422, "The hub refuses the push"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.code = reason  # type: ignore[misc]  # one class for all that a hub may say


class NoRepository(HubRefused):
    """The hub has no such repository, or does not show it to this token."""


class NoRevision(HubRefused):
    """The repository has no such branch."""


class BranchMoved(Exception):
    """The branch has another commit than the one that was to be the parent."""


def refusal(got: Fetched, name: str, endpoint: str, token: str) -> Problem:
    """What an answer of another status than 2xx means for a push to the repository `name`."""
    host, said = urlsplit(endpoint).netloc, _said(got, token)
    words, code = (f": {said}" if said else ""), got.headers.get("x-error-code", "")
    if 300 <= got.status < 400:
        there = got.headers.get("location", "").partition("?")[0][:_SHOWN]
        hint = "redirects are not followed with a token; name the repository as it is called now"
        return HubRefused("hub_redirects", f"{host} sends the push of {name} elsewhere ({there}): {hint}.")
    if got.status in _AGAIN or got.status >= 500:
        return HubUnavailable(f"{host} answers {got.status} for {name}{words}; it is tried again.", retry_after=10)
    if got.status == 402 or (got.status in (403, 413) and any(word in said.lower() for word in _ROOM)):
        return HubRefused("hub_quota", f"{host} has no room for {name} in this account{words}.")
    if code == "RevisionNotFound":
        return NoRevision("hub_revision_unknown", f"{name} has no branch of this name on {host}.")
    if code == "GatedRepo":
        return HubRefused("hub_gated", f"{name} is gated: accept its terms at {endpoint}/{name} with the token's account.")
    if got.status == 401 and code != "RepoNotFound":
        return HubRefused("hub_token_refused", f"{host} does not know the token{words}; make one that may write.")
    if got.status == 403:
        hint = f"the token needs the right to write to {name}"
        return HubRefused("hub_forbidden", f"{host} does not allow it: {hint}{words}.")
    if code == "RepoNotFound" or got.status in (401, 404):
        return NoRepository("hub_unknown", f"{host} has no repository {name} that this token may see.")
    return HubRefused("hub_refused", f"{host} answers {got.status} for {name}{words}.")


def unreadable(endpoint: str, what: str) -> HubUnavailable:
    """The answer is not of the form that hubs have."""
    return HubUnavailable(f"What {urlsplit(endpoint).netloc} says of {what} cannot be read; is HF_ENDPOINT a hub?")


def _said(got: Fetched, token: str) -> str:
    """The hub's own words, bounded, without the token."""
    found: Any = got.headers.get("x-error-message")
    if not found:
        try:
            body = json.loads(got.body)
        except (ValueError, RecursionError):
            body = None
        found = body.get("error") if isinstance(body, dict) else None
    if not isinstance(found, str):
        return ""
    plain = "".join(letter if letter.isprintable() else " " for letter in found.replace(token or "\0", "***"))
    return plain[:_SHOWN].strip().rstrip(".")
