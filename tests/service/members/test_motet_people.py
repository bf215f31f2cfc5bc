"""`motet login --sso`, `whoami`, `members` and `service-accounts` against a real service and a real provider."""

import io
import json
import stat
import sys
import threading

import httpx
import pytest
from motet.api import keyring
from motet.cli import main

from service.tenants.member_roles import Role
from tests.service.live_server import PATIENCE, live
from tests.service.members.conftest import Browser


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def motet(monkeypatch, tmp_path, capsys):
    """Run the command line, with nothing in its environment."""
    for name in ("MOTET_API_URL", "MOTET_API_KEY", "MOTET_ADMIN_KEY", "MOTET_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOTET_STATE_DIR", str(tmp_path / "no-stack"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("motet.cli.signal.signal", lambda *_: None)

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["motet", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def url(oidc_settings, provider):
    provider.tell(interval=1)
    with live(oidc_settings) as server:
        yield server.url


class Person(threading.Thread):
    """Somebody at the provider's page, as soon as a program shows a code."""

    def __init__(self, provider, act: str) -> None:
        super().__init__()
        self.provider, self.act = provider, act
        self.before = provider.calls.count("/token")  # browsers ask there too

    def run(self) -> None:
        pause = threading.Event()
        while self.provider.calls.count("/token") == self.before:  # until the program polls: it has its code
            pause.wait(0.05)
        httpx.get(f"{self.provider.url}/device?user_code=any&act={self.act}", timeout=PATIENCE)


def signed_in(motet, provider, url: str, act: str = "approve", *words: str) -> Ended:
    person = Person(provider, act)
    person.start()
    ended = motet("login", url, "--sso", *words)
    person.join()
    return ended


def test_a_person_signs_in_and_manages_the_tenant(motet, url, provider, tenant, link, service):
    provider.sign_in_as("ada")
    Browser(service.app).join(link(tenant.tenant_id, Role.OWNER))
    ended = signed_in(motet, provider, url, "approve", "--name", "ours")
    assert ended.code == 0, ended.err
    assert "signed in as ada@example.com, owner of" in ended.out
    path = keyring.keyring_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keyring.load().logins["ours"].key not in ended.out + ended.err
    me = json.loads(motet("whoami", "--json").out)
    assert (me["label"], me["role"]) == ("ada@example.com", "owner")
    assert "ada@example.com" in motet("whoami").out
    made = json.loads(motet("members", "invite", "bob@example.com", "--role", "viewer", "--json").out)
    provider.sign_in_as("bob")
    Browser(service.app).join(made["url"])
    assert [one["role"] for one in json.loads(motet("members", "--json").out)] == ["viewer", "owner"]
    assert motet("members", "role", "bob@example.com", "editor").code == 0
    assert "bob@example.com is no member" in motet("members", "remove", "bob@example.com").out
    assert "used" in motet("members", "invitations").out
    account = json.loads(motet("service-accounts", "create", "ci", "--json").out)
    assert account["key"]["secret"].startswith("mk_")
    assert motet("service-accounts", "key", "ci").out.startswith("mk_")
    assert motet("service-accounts", "delete", "ci").code == 0
    assert motet("members", "remove", "nobody").code == 1
    key = keyring.load().logins["ours"].key
    told = service.get("/v1/audit", headers={"Authorization": f"Bearer {key}"}).json()["data"]
    assert {entry["actor"] for entry in told} == {"ada@example.com", "bob@example.com"}


@pytest.mark.parametrize("act", ["deny"])
def test_who_says_no_gets_no_key(motet, url, provider, act):
    ended = signed_in(motet, provider, url, act)
    assert (ended.code, "access_denied" in ended.err) == (1, True), ended.err
    assert not keyring.keyring_file().exists()


def test_a_service_without_a_provider_says_so(motet, server):
    ended = motet("login", server.url, "--sso")
    assert ended.code == 1
    assert "No identity provider is set" in ended.err


def test_an_admin_invites_the_first_owner(motet, server, admin, tenant, monkeypatch):
    monkeypatch.setenv("MOTET_API_URL", server.url)
    monkeypatch.setenv("MOTET_API_KEY", admin.key)
    monkeypatch.setenv("MOTET_ADMIN_KEY", admin.key)
    ended = motet("admin", "invite", tenant.tenant_id, "first@example.com")
    assert ended.code == 0, ended.err
    assert f"{server.url}/invitations/mi_" in ended.out.splitlines()[0]
    assert json.loads(motet("admin", "members", tenant.tenant_id, "--json").out) == []
