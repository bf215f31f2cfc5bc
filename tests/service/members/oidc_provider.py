"""A small OpenID provider as a process of its own: code flow with PKCE, device flow, user info, rotation, and lies on request.

Whoever it signs in is said by POST /control; the browser's part is a redirect that answers at once.
"""

import base64
import hashlib
import hmac
import json
import secrets
import sys
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from tests.http_server import HangUpServer, read_body

CLIENT, SECRET = "motet", "s3cret of the client"


@dataclass
class Told:
    """What tests say by /control; a member that is left out stays."""

    user: dict[str, Any] = field(default_factory=lambda: {"sub": "ada", "email": "ada@example.com", "email_verified": True})
    refuses: str = ""  # error code of the authorization endpoint
    claims: dict[str, Any] = field(default_factory=dict)  # instead of the token's own; null leaves one out
    signs: str = "published"  # or unpublished, impostor, none, HS256
    iss: str | None = "own"  # of the authorization response
    thin: bool = False  # the address is at the user info endpoint alone
    public: bool = False  # the client needs no secret
    interval: int = 0  # between two polls of a device
    device_seconds: int = 600


def _base64(said: bytes) -> str:
    return base64.urlsafe_b64encode(said).decode().rstrip("=")


class Provider:
    def __init__(self) -> None:
        self.told, self.calls = Told(), list[str]()
        self.codes: dict[str, dict[str, Any]] = {}
        self.devices: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.url = ""
        self.rotate()

    def rotate(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})

    def metadata(self) -> dict[str, Any]:
        names = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "jwks",
            "userinfo_endpoint": "userinfo",
            "device_authorization_endpoint": "device_authorization",
        }
        found: dict[str, Any] = {name: f"{self.url}/{path}" for name, path in names.items()}
        iss = self.told.iss is not None
        return found | {"issuer": self.url, "authorization_response_iss_parameter_supported": iss}

    def id_token(self, nonce: str | None) -> str:
        told, now = self.told, int(time.time())
        user = {name: told.user[name] for name in ("sub",)} if told.thin else told.user
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, **user, **({"nonce": nonce} if nonce else {})}
        claims = {name: value for name, value in (claims | told.claims).items() if value is not None}
        if told.signs in ("none", "HS256"):
            parts = [json.dumps(part).encode() for part in ({"alg": told.signs, "kid": self.key.kid}, claims)]
            said = ".".join(_base64(part) for part in parts)
            # HS256: with the public key, which everybody has, as the secret
            mac = hmac.digest(self.key.as_pem(private=False), said.encode(), "sha256") if told.signs == "HS256" else b""
            return f"{said}.{_base64(mac)}"
        key = self.key
        if told.signs == "unpublished":
            key = RSAKey.generate_key(2048, {"kid": "unknown"})
        if told.signs == "impostor":  # another key under the published one's name
            key = RSAKey.generate_key(2048, {"kid": self.key.kid})
        return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)

    def granted(self, nonce: str | None) -> dict[str, Any]:
        access = secrets.token_urlsafe(16)
        self.tokens[access] = self.told.user
        return {"id_token": self.id_token(nonce), "access_token": access, "token_type": "Bearer", "expires_in": 300}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser is sent."""
        back = {"state": asked["state"]}
        if self.told.iss is not None:
            back["iss"] = self.url if self.told.iss == "own" else self.told.iss
        if self.told.refuses:
            back["error"] = self.told.refuses
        else:
            assert asked["code_challenge_method"] == "S256"
            back["code"] = secrets.token_urlsafe(16)
            self.codes[back["code"]] = asked
        return asked["redirect_uri"] + "?" + urlencode(back)

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if not self._is_client(form, authorization):
            return 401, {"error": "invalid_client"}
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"], None)  # once
            challenge = _base64(hashlib.sha256(form["code_verifier"].encode()).digest())
            if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
                return 400, {"error": "invalid_grant"}
            return 200, self.granted(asked["nonce"])
        return self._device_token(form["device_code"])

    def _device_token(self, code: str) -> tuple[int, dict[str, Any]]:
        device, now = self.devices.get(code), time.monotonic()
        if device is None:
            return 400, {"error": "invalid_grant"}
        if now > device["until"]:
            return 400, {"error": "expired_token"}
        if device["said"] == "approve":
            del self.devices[code]
            return 200, self.granted(None)
        if device["said"] == "deny":
            return 400, {"error": "access_denied"}
        early, device["asked"] = now - device["asked"] < self.told.interval, now
        return 400, {"error": "slow_down" if early else "authorization_pending"}

    def _is_client(self, form: dict[str, str], authorization: str) -> bool:
        if self.told.public:
            return form.get("client_id") == CLIENT and not authorization
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return (unquote(given[0]), unquote(given[2])) == (CLIENT, SECRET)

    def device(self) -> dict[str, Any]:
        code, user_code = secrets.token_urlsafe(16), secrets.token_hex(3).upper()
        until = time.monotonic() + self.told.device_seconds
        self.devices[code] = {"user_code": user_code, "said": "", "asked": -1e9, "until": until}
        page = f"{self.url}/device"
        made = {"device_code": code, "user_code": user_code, "verification_uri": page, "interval": self.told.interval}
        return made | {"expires_in": self.told.device_seconds, "verification_uri_complete": f"{page}?user_code={user_code}"}


class Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts, it = urlsplit(self.path), self.provider
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        it.calls.append(parts.path)
        if parts.path == "/.well-known/openid-configuration":
            self._answer(200, it.metadata())
        elif parts.path == "/jwks":
            self._answer(200, KeySet([it.key]).as_dict(private=False))
        elif parts.path == "/authorize":
            self._answer(302, {}, {"Location": it.authorize(asked)})
        elif parts.path == "/device":  # where the person says yes or no
            for device in it.devices.values():
                if asked["user_code"] in ("any", device["user_code"]):
                    device["said"] = asked.get("act", "approve")
            self._answer(200, {})
        elif parts.path == "/userinfo":
            user = it.tokens.get(self.headers["Authorization"].removeprefix("Bearer "))
            self._answer(200 if user else 401, user or {})
        elif parts.path == "/calls":
            self._answer(200, {"calls": it.calls})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body = read_body(self).decode()
        it = self.provider
        if self.path == "/control":
            said = json.loads(body)
            if said.pop("rotate", False):
                it.rotate()
            it.told = Told(**(vars(it.told) | said))
            self._answer(200, {})
            return
        it.calls.append(self.path)
        form = {name: values[0] for name, values in parse_qs(body).items()}
        if self.path == "/token":
            self._answer(*it.token(form, self.headers.get("Authorization", "")))
        elif self.path == "/device_authorization":
            self._answer(200, it.device())
        else:
            self._answer(404, {})

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        said = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(said)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    """Serve on a free port of this machine, said on standard output, until standard input closes."""
    provider = Provider()
    handler = type("Of", (Handler,), {"provider": provider})
    with HangUpServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        sys.stdout.write(provider.url + "\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
