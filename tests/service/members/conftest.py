"""An identity provider in a process of its own, a service that signs in by it, and a browser without scripts."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from service.app import create_app
from service.authentication import SESSION_COOKIE
from service.members.invitations import invite
from service.settings import Settings
from service.tenants.api_keys import Principal
from service.tenants.member_roles import Role
from tests.service.live_server import PATIENCE

PUBLIC = "http://testserver"


@dataclass
class ProviderProcess:
    url: str
    process: subprocess.Popen[str]

    def tell(self, **said: Any) -> None:
        httpx.post(f"{self.url}/control", json=said, timeout=PATIENCE).raise_for_status()

    def sign_in_as(self, subject: str, email: str | None = None, verified: bool = True, **more: Any) -> None:
        address = {"email": email or f"{subject}@example.com", "email_verified": verified}
        self.tell(user={"sub": subject, **address, **more})

    @property
    def calls(self) -> list[str]:
        return httpx.get(f"{self.url}/calls", timeout=PATIENCE).json()["calls"]


@pytest.fixture
def provider() -> Iterator[ProviderProcess]:
    pytest.importorskip("joserfc", reason="joserfc, which the service needs to sign in by a provider, is not installed")
    command = [sys.executable, "-m", "tests.service.members.oidc_provider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield ProviderProcess(process.stdout.readline().strip(), process)
        process.kill()


@pytest.fixture
def oidc_settings(settings_for, database_url, tmp_path, provider) -> Settings:
    return settings_for(
        database_url,
        tmp_path,
        public_url=PUBLIC,
        oidc_issuer=provider.url,
        oidc_client_id="motet",
        oidc_client_secret=SecretStr("s3cret of the client"),
        oidc_name="Example ID",
    )


@pytest.fixture
def service(oidc_settings) -> Iterator[TestClient]:
    app = create_app(oidc_settings)
    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as made:
        yield made


class Browser:
    """Keeps cookies as browsers do, and sends Strict ones only where the page before was of this site."""

    def __init__(self, app: Any) -> None:
        self.client = TestClient(app, raise_server_exceptions=False, follow_redirects=False)
        self.cookies: dict[str, tuple[str, str, str]] = {}  # value, path, samesite

    def get(self, path: str, cross_site: bool = False, **how: Any) -> httpx.Response:
        return self._kept(self.client.get(path, headers=self._sent(path, cross_site) | {"Accept": "text/html"}, **how))

    def post(self, path: str, origin: str = PUBLIC, **fields: str) -> httpx.Response:
        if "csrf" not in fields and SESSION_COOKIE in self.cookies:
            fields["csrf"] = self.csrf
        return self._kept(self.client.post(path, data=fields, headers=self._sent(path, origin != PUBLIC) | {"Origin": origin}))

    @property
    def csrf(self) -> str:
        found = re.search(r'<meta name="csrf" content="([0-9a-f]{64})">', self.get("/tasks").text)
        assert found is not None
        return found[1]

    def at_provider(self, address: str) -> str:
        """Go there and come back: the path at this site that the provider leads to."""
        answer = httpx.get(address, timeout=PATIENCE)
        assert answer.status_code == 302, answer.text
        where = urlsplit(answer.headers["location"])
        assert f"{where.scheme}://{where.netloc}" == PUBLIC
        return f"{where.path}?{where.query}"

    def sign_in(self, then: str = "/tasks") -> httpx.Response:
        gone = self.get(f"/oidc/sign-in?next={then}")
        assert gone.status_code == 303, gone.text
        return self.get(self.at_provider(gone.headers["location"]), cross_site=True)

    def join(self, link: str) -> httpx.Response:
        path = urlsplit(link).path
        page = self.post(path)
        assert page.status_code == 200, page.text
        found = re.search(r'<a href="([^"]+/authorize[^"]+)"', page.text)
        assert found is not None
        return self.get(self.at_provider(found[1].replace("&amp;", "&")), cross_site=True)

    def me(self) -> dict[str, Any]:
        return self.get("/v1/me").json()

    def _sent(self, path: str, cross_site: bool) -> dict[str, str]:
        sent = [
            f"{name}={value}"
            for name, (value, where, samesite) in self.cookies.items()
            if path.startswith(where) and not (cross_site and samesite == "strict")
        ]
        return {"Cookie": "; ".join(sent)} if sent else {}

    def _kept(self, answer: httpx.Response) -> httpx.Response:
        self.client.cookies.clear()
        for line in answer.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies.pop(name, None)
                if morsel["max-age"] != "0":
                    self.cookies[name] = (morsel.value, morsel["path"], morsel["samesite"].lower())
        return answer


@pytest.fixture
def browser(service) -> Browser:
    return Browser(service.app)


@pytest.fixture
def link(database) -> Callable[..., str]:
    """An invitation's link: `link(tenant_id, Role.EDITOR, email=None)`."""

    def make(tenant_id: str, role: Role = Role.OWNER, email: str | None = None) -> str:
        with database.begin() as session:
            _, secret = invite(session, tenant_id, role, email, Principal("", "", frozenset()))
        return f"{PUBLIC}/invitations/{secret}"

    return make
