"""Commands about who asks: log in, services, keys, usage, quotas."""

import platform
import re
from typing import Annotated

import typer
from rich.console import Group

from contract.gpu_counts import device_word
from motet.api import credentials, keyring
from motet.api.client import Client
from motet.commands.common import Json, Limit, Output, asked_secret, first
from motet.display.tables.account_tables import keys_table, quotas_table, services_table, usage_table
from motet.specs.spec_file import SpecError

keys = typer.Typer(help="This tenant's API keys: listed, or one created or revoked.", invoke_without_command=True)
_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
Scopes = Annotated[list[str], typer.Option("--scope", help="What the key may do: read, write, admin; may be repeated.")]
Expires = Annotated[str | None, typer.Option(help="When it ends, such as 2027-01-01T00:00:00Z; left out, when it is revoked.")]


def login(
    url: Annotated[str, typer.Argument(help="The service's address, such as https://motet.example.")],
    name: Annotated[str | None, typer.Option(help="What to call it; left out, its host.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Ask for an admin key too.")] = False,
    sso: Annotated[bool, typer.Option("--sso", help="Sign in by the service's identity provider, in a browser.")] = False,
    tenant: Annotated[str | None, typer.Option(help="With --sso: one of your tenants; left out, the last one.")] = None,
    json: Json = False,
) -> None:
    """Keep a service's address and key, and use it from now on. The key is asked for, or read from standard input.

    With --sso you sign in by the service's identity provider, and the key is made for you."""
    url = url.strip().rstrip("/")
    key = _signed_in(url, tenant, Output(json)) if sso else asked_secret("API key")
    admin_key = asked_secret("admin key") if admin else None
    with Client(url, key, admin_key) as client:
        client.account.quotas()  # the key is good
        if admin_key is not None:
            next(client.admin.tenants(), None)
    ring, name = keyring.load(), name or url.partition("://")[2]
    if name == keyring.LOCAL:
        raise SpecError(f"{keyring.LOCAL} is the stack on this machine; give this service another --name")
    ring.logins[name], ring.current = keyring.Login(url, key, admin_key), name
    ring.save()
    said = f"logged in to {name}; it is used until `motet use` names another. Its key is in {ring.path}, mode 600"
    Output(json).give({"name": name, "api_url": url, "in_use": True}, lambda: said)


def logout(
    name: Annotated[str | None, typer.Argument(help="A service; left out, the one in use.")] = None, json: Json = False
) -> None:
    """Forget a service's key. The key itself stays valid: `motet keys revoke` ends it."""
    ring = keyring.load()
    name = name or ring.current
    if name is None or name not in ring.logins:
        raise SpecError(f"not logged in to {name or 'any service'}; `motet services` lists them")
    del ring.logins[name]
    ring.current = None if ring.current == name else ring.current
    ring.save()
    said = f"{name} is forgotten" + ("" if ring.current else f"; {keyring.LOCAL} is used")
    Output(json).give({"name": name, "forgotten": True, "in_use": ring.current or keyring.LOCAL}, lambda: said)


def use(
    name: Annotated[str, typer.Argument(help="A service, or `local`, the stack on this machine.")], json: Json = False
) -> None:
    """Choose the service that commands talk to."""
    ring = keyring.load()
    if name != keyring.LOCAL and name not in ring.logins:
        raise SpecError(f"not logged in to {name}; `motet login URL --name {name}` does so")
    ring.current = None if name == keyring.LOCAL else name
    ring.save()
    Output(json).give({"name": name, "in_use": True}, lambda: f"{name} is used")


def dashboard(json: Json = False) -> None:
    """Print a link that signs a browser in to the dashboard: once, within 15 minutes."""
    output = Output(json)
    with Client() as client:
        link = client.account.sign_in_link()
    output.give(link, lambda: link.url)


def services(json: Json = False) -> None:
    """List the services that this machine knows; the one in use is marked."""
    output, ring = Output(json), keyring.load()
    rows = [(name, login.api_url, ring.current == name) for name, login in sorted(ring.logins.items())]
    if credentials.credentials_file().exists():
        rows.append((keyring.LOCAL, credentials.find(service=keyring.LOCAL).api_url, ring.current is None))
    listed = [{"name": name, "api_url": url, "in_use": used} for name, url, used in rows]
    output.give(listed, lambda: services_table(rows) if rows else "none yet; `motet login URL` adds one")


def usage(
    month: Annotated[str | None, typer.Option(help="Such as 2026-11; left out, this month.")] = None, json: Json = False
) -> None:
    """What was used in a month, by task, what early exit saved, and the quotas."""
    output = Output(json)
    if month is not None and not _MONTH.fullmatch(month):
        raise SpecError(f"--month {month}: a month is written as 2026-11")
    with Client() as client:
        found, limits = client.account.usage(month), client.account.quotas()
    word = device_word(found.device_types)
    output.give({"usage": found, "quotas": limits}, lambda: Group(usage_table(found), quotas_table(limits, word)))


@keys.callback()
def list_keys(context: typer.Context, limit: Limit = 100, json: Json = False) -> None:
    """List this tenant's keys, the newest first."""
    if context.invoked_subcommand is None:
        _list_keys(limit, json)


@keys.command("list")
def list_keys_too(limit: Limit = 100, json: Json = False) -> None:
    """List this tenant's keys, the newest first, as `motet keys` alone does."""
    _list_keys(limit, json)


def _list_keys(limit: int, json: bool) -> None:
    output = Output(json)
    with Client() as client:
        found = first(limit, client.account.keys())
    output.give(found, lambda: keys_table(found))


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="To tell it from others.")],
    scope: Scopes = ["read", "write"],  # noqa: B006  (typer copies it)
    expires_at: Expires = None,
    json: Json = False,
) -> None:
    """Make a key. It is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.account.create_key(name, scope, expires_at)
    output.give(made, lambda: f"{made.secret}\n{made.id} ({made.name}): {', '.join(made.scopes)}; this key is not shown again")


@keys.command("revoke")
def revoke_key(key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id.")], json: Json = False) -> None:
    """End a key. It is refused everywhere within seconds."""
    output = Output(json)
    with Client() as client:
        ended = client.account.revoke_key(key)
    output.give(ended, lambda: f"{ended.id} is revoked")


def _signed_in(url: str, tenant: str | None, output: Output) -> str:
    """A key of the person who signs in on the provider's page, whatever device that is open on."""
    with Client(url, "none") as client:  # signing in needs no key
        begun = client.account.begin_sign_in()
        where = begun.verification_uri_complete or begun.verification_uri
        output.say(f"open {where}\nand see that it shows the code {begun.user_code}; waiting for you to sign in")
        found = client.account.wait_for_sign_in(begun, f"motet on {platform.node() or 'a machine'}"[:128], tenant)
    assert found.key is not None, "a sign-in that is not pending has a key"
    assert found.key.secret is not None, "the answer that makes a key shows it"
    output.say(f"signed in as {found.label}" + (f", {found.tenant.role} of {found.tenant.name}" if found.tenant else ""))
    return found.key.secret
