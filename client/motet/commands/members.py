"""`motet members`: the tenant's people, their invitations, and service accounts; and `motet whoami`."""

from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables.account_tables import (
    invitation_words,
    invitations_table,
    me_table,
    members_table,
    service_accounts_table,
)

members = typer.Typer(help="The tenant's members: listed, invited, changed, removed.", invoke_without_command=True)
accounts = typer.Typer(help="Service accounts: for programs that outlive a member.", invoke_without_command=True)

Who = Annotated[str, typer.Argument(metavar="MEMBER", help="A member's address, name or id.")]
Which = Annotated[str, typer.Argument(metavar="ACCOUNT", help="A service account's name or id.")]
Role = Annotated[str, typer.Option(help="viewer, editor or owner.")]


def whoami(json: Json = False) -> None:
    """Who calls, in which tenant, and what they may do."""
    output = Output(json)
    with Client() as client:
        found = client.account.me()
    output.give(found, lambda: me_table(found))


@members.callback()
def list_members(context: typer.Context, limit: Limit = 100, json: Json = False) -> None:
    """List the tenant's members, the newest first."""
    if context.invoked_subcommand is None:
        output = Output(json)
        with Client() as client:
            found = first(limit, client.members.list())
        output.give(found, lambda: members_table(found) if found else "no members; `motet members invite` makes a link for one")


@members.command()
def invite(
    email: Annotated[str | None, typer.Argument(help="Who joins must sign in with it; left out, whoever has the link.")] = None,
    role: Role = "editor",
    json: Json = False,
) -> None:
    """Make a link that admits somebody, once, within a week. It is shown this once, and no message is sent."""
    output = Output(json)
    with Client() as client:
        made = client.members.invite(role, email)
    output.give(made, lambda: invitation_words(made))


@members.command()
def invitations(limit: Limit = 100, json: Json = False) -> None:
    """List invitations, the newest first."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.members.invitations())
    output.give(found, lambda: invitations_table(found) if found else "no invitations")


@members.command("take-back")
def take_back(
    invitation: Annotated[str, typer.Argument(metavar="INVITATION", help="An invitation's id.")], json: Json = False
) -> None:
    """Take an invitation back."""
    output = Output(json)
    with Client() as client:
        gone = client.members.take_back(invitation)
    output.give(gone, lambda: f"{gone.id} admits nobody any more")


@members.command()
def role(member: Who, role: Annotated[str, typer.Argument(help="viewer, editor or owner.")], json: Json = False) -> None:
    """Give a member another role. It holds at once for all of their keys and sessions."""
    output = Output(json)
    with Client() as client:
        changed = client.members.change_role(_user(client, member), role)
    output.give(changed, lambda: f"{changed.called} is {changed.role}")


@members.command()
def remove(member: Who, json: Json = False) -> None:
    """Remove a member. Their keys and sessions in the tenant end at once; what they made stays."""
    output = Output(json)
    with Client() as client:
        gone = client.members.remove(_user(client, member))
    output.give(gone, lambda: f"{gone.called} is no member any more")


@accounts.callback()
def list_accounts(context: typer.Context, limit: Limit = 100, json: Json = False) -> None:
    """List service accounts, the newest first."""
    if context.invoked_subcommand is None:
        output = Output(json)
        with Client() as client:
            found = first(limit, client.members.service_accounts())
        output.give(found, lambda: service_accounts_table(found) if found else "no service accounts")


@accounts.command("create")
def create_account(
    name: Annotated[str, typer.Argument(help="What runs under it.")], role: Role = "editor", json: Json = False
) -> None:
    """Make a service account with a key. The key is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.members.create_service_account(name, role)
        key = client.members.create_service_account_key(made.id)
    output.give(
        {"service_account": made, "key": key}, lambda: f"{key.secret}\n{made.name}: {made.role}; this key is not shown again"
    )


@accounts.command("key")
def create_account_key(account: Which, name: Annotated[str, typer.Argument()] = "key", json: Json = False) -> None:
    """Give a service account another key. It is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.members.create_service_account_key(_account(client, account), name)
    output.give(made, lambda: f"{made.secret}\n{made.id} ({made.name}); this key is not shown again")


@accounts.command("delete")
def delete_account(account: Which, json: Json = False) -> None:
    """Delete a service account. Its keys end at once."""
    output = Output(json)
    with Client() as client:
        gone = client.members.delete_service_account(_account(client, account))
    output.give(gone, lambda: f"{gone.name} is deleted")


def _user(client: Client, named: str) -> str:
    found = [one.user_id for one in client.members.list() if named in (one.user_id, one.email, one.name)]
    if len(found) != 1:
        raise MotetError(f"{'no' if not found else 'more than one'} member is called {named!r}; `motet members` lists them")
    return found[0]


def _account(client: Client, named: str) -> str:
    for one in client.members.service_accounts():
        if named in (one.id, one.name):
            return one.id
    raise MotetError(f"there is no service account {named!r}; `motet service-accounts` lists them")
