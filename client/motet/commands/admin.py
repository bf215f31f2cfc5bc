"""`motet admin`: tenants and their keys, prices, base models, nodes, the audit log. Needs an admin key."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from contract.gpu_counts import device_word
from motet.api.client import Client
from motet.api.errors import MotetError
from motet.commands.account import Expires, Scopes
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables.account_tables import (
    audit_table,
    invitation_words,
    keys_table,
    members_table,
    prices_table,
    tenants_table,
)

admin = typer.Typer(
    no_args_is_help=True, help="Tenants, their keys, prices, base models, nodes, the audit log. Needs an admin key."
)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's id or name.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="A node's name or id.")]
DeviceType = Annotated[str, typer.Argument(metavar="TYPE", help="Of GPU, as `motet cluster --json` names it, or `cpu`.")]
_DAYS = ["%Y-%m-%d"]
Most = Annotated[int | None, typer.Option(min=0)]


@admin.command()
def tenants(limit: Limit = 100, json: Json = False) -> None:
    """List tenants, the newest first."""
    output = Output(json)
    with Client() as client:
        found, word = first(limit, client.admin.tenants()), _device_word(client)
    output.give(found, lambda: tenants_table(found, word))


@admin.command()
def tenant(
    name: Annotated[str, typer.Argument(help="A new tenant's name, or an existing one's name or id.")],
    weight: Annotated[float | None, typer.Option(help="Of its fair share; 1 for a new tenant.")] = None,
    running_gpus: Most = None,
    queued_tasks: Most = None,
    stored_bytes: Most = None,
    month_tokens: Most = None,
    json: Json = False,
) -> None:
    """Make a tenant, or change one's weight and quotas. A quota that is not named stays as it is."""
    output = Output(json)
    given = {
        "running_gpus": running_gpus,
        "queued_tasks": queued_tasks,
        "stored_bytes": stored_bytes,
        "month_tokens": month_tokens,
    }
    said = {quota: value for quota, value in given.items() if value is not None}
    with Client() as client:
        known = next((one for one in client.admin.tenants() if name in (one.id, one.name)), None)
        if known is None:
            found = client.admin.create_tenant(name, weight if weight is not None else 1.0, said)
        else:
            quotas = known.quotas.model_dump() | said if said else None
            found = client.admin.change_tenant(known.id, weight, quotas)
        word = _device_word(client)
    output.give(found, lambda: tenants_table([found], word))


@admin.command()
def keys(tenant: TenantId, limit: Limit = 100, json: Json = False) -> None:
    """List a tenant's keys, the newest first."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.admin.keys(_tenant(client, tenant)))
    output.give(found, lambda: keys_table(found) if found else "no keys")


@admin.command()
def key(
    tenant: TenantId,
    name: Annotated[str, typer.Argument(help="To tell the key from others.")],
    scope: Scopes = ["read", "write"],  # noqa: B006  (typer copies it)
    expires_at: Expires = None,
    json: Json = False,
) -> None:
    """Give a tenant a key. It is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.admin.create_key(_tenant(client, tenant), name, scope, expires_at)
    output.give(made, lambda: f"{made.secret}\n{made.id} ({made.name}): {', '.join(made.scopes)}; this key is not shown again")


@admin.command()
def revoke(key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id.")], json: Json = False) -> None:
    """End any tenant's key. It is refused everywhere within seconds."""
    output = Output(json)
    with Client() as client:
        ended = client.admin.revoke_key(key)
    output.give(ended, lambda: f"{ended.id} is revoked")


@admin.command()
def invite(
    tenant: TenantId,
    email: Annotated[str | None, typer.Argument(help="Who joins must sign in with it; left out, whoever has the link.")] = None,
    role: Annotated[str, typer.Option(help="viewer, editor or owner.")] = "owner",
    json: Json = False,
) -> None:
    """Make a link into a tenant, such as its first owner's. It works once, and is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.admin.invite(_tenant(client, tenant), role, email)
    output.give(made, lambda: invitation_words(made))


@admin.command()
def members(tenant: TenantId, limit: Limit = 100, json: Json = False) -> None:
    """List a tenant's members, the newest first."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.admin.members(_tenant(client, tenant)))
    output.give(found, lambda: members_table(found) if found else "no members")


@admin.command("remove-member")
def remove_member(
    tenant: TenantId, user: Annotated[str, typer.Argument(metavar="USER", help="A user's id.")], json: Json = False
) -> None:
    """Remove a member of any tenant, the last owner too. Their keys and sessions there end at once."""
    output = Output(json)
    with Client() as client:
        gone = client.admin.remove_member(_tenant(client, tenant), user)
    output.give(gone, lambda: f"{gone.called} is no member any more")


@admin.command()
def prices(json: Json = False) -> None:
    """List what an hour of each type of GPU costs, and from which day on."""
    output = Output(json)
    with Client() as client:
        found = client.account.prices()
    output.give(found, lambda: prices_table(found) if found.data or found.default_per_hour is not None else "no prices")


@admin.command()
def price(
    device_type: DeviceType,
    per_hour: Annotated[
        float, typer.Argument(metavar="PRICE", min=0, help="Of an hour of one GPU, in the service's currency.")
    ],
    from_day: Annotated[datetime | None, typer.Option(formats=_DAYS, help="In UTC; left out, today.")] = None,
    json: Json = False,
) -> None:
    """Set what an hour of a type of GPU costs from a day on. The same day again replaces its price."""
    output = Output(json)
    with Client() as client:
        made = client.admin.set_price(device_type, per_hour, from_day.date() if from_day is not None else None)
    output.give(made, lambda: f"{made.device_type}: {made.per_hour:g} {made.currency} an hour from {made.from_day} on")


@admin.command("remove-price")
def remove_price(
    device_type: DeviceType,
    from_day: Annotated[datetime, typer.Argument(metavar="DAY", formats=_DAYS, help="From which it holds.")],
    json: Json = False,
) -> None:
    """Take a price back. The one before it holds again, or the default."""
    output = Output(json)
    with Client() as client:
        gone = client.admin.remove_price(device_type, from_day.date())
    output.give(gone, lambda: f"{gone.device_type}: {gone.per_hour:g} {gone.currency} from {gone.from_day} on is taken back")


@admin.command()
def model(
    name: Annotated[str, typer.Argument(help="What tasks call it.")],
    folder: Annotated[Path, typer.Argument(help="config.json, tokenizer.json, *.safetensors; at the same path on every node.")],
    json: Json = False,
) -> None:
    """Allow a base model, or bring its entry up to date."""
    output = Output(json)
    with Client() as client:
        found = client.admin.register_model(name, folder.absolute())
    output.give(
        found, lambda: f"{found.name}: {found.parameters:,} parameters, {found.architecture}, revision {found.revision}"
    )


@admin.command()
def drain(
    node: NodeName,
    evict: Annotated[bool, typer.Option("--evict", help="Its tasks leave too, each once its jobs are safe.")] = False,
    json: Json = False,
) -> None:
    """Let a node take nothing new, before maintenance."""
    output = Output(json)
    with Client() as client:
        found = client.admin.drain(_node(client, node), evict)
    output.give(found, lambda: f"{found.name} is drained; {_tasks(len(found.running))} there still")


@admin.command()
def undrain(node: NodeName, json: Json = False) -> None:
    """Let a drained or quarantined node take tasks again."""
    output = Output(json)
    with Client() as client:
        found = client.admin.undrain(_node(client, node))
    output.give(found, lambda: f"{found.name} takes tasks again")


@admin.command("remove-node")
def remove_node(node: NodeName, json: Json = False) -> None:
    """Remove a node that is lost or stopped from the list. What ran there stays; it joins again with a join token."""
    output = Output(json)
    with Client() as client:
        gone = client.admin.remove_node(_node(client, node))
    output.give(gone, lambda: f"{gone.name} is removed; it joins again with `motet admin join-token {gone.name}`")


@admin.command("join-token")
def join_token(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The name under which the node joins; gpu-* for all that begin so.")
    ],
    seconds: Annotated[int | None, typer.Option(min=60, help="How long it works if unused; left out, an hour.")] = None,
    json: Json = False,
) -> None:
    """A token with which a node joins, once, or all of a prefix, until it expires. It is shown this once."""
    output = Output(json)
    with Client() as client:
        made = client.admin.create_join_token(node, seconds)
    output.give(
        made, lambda: f"{made.secret}\nMOTET_JOIN_TOKEN of {made.node_name}, until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    )


@admin.command()
def audit(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant, by id or name.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this operation, such as cancel_task.")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """Who did what, the newest first."""
    output = Output(json)
    with Client() as client:
        of = _tenant(client, tenant) if tenant is not None else None
        found = first(limit, client.admin.audit(of, action))
    output.give(found, lambda: audit_table(found) if found else "nothing is recorded")


def _tenant(client: Client, named: str) -> str:
    for one in client.admin.tenants():
        if named in (one.id, one.name):
            return one.id
    raise MotetError(f"there is no tenant {named!r}; `motet admin tenants` lists them")


def _device_word(client: Client) -> str:
    return device_word(device.type for node in client.admin.nodes() for device in node.devices)


def _tasks(number: int) -> str:
    return "no task runs" if number == 0 else "1 task runs" if number == 1 else f"{number} tasks run"


def _node(client: Client, named: str) -> str:
    for one in client.admin.nodes():
        if named in (one.id, one.name):
            return one.id
    raise MotetError(f"there is no node {named!r}; `motet nodes` lists them")
