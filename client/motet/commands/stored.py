"""Commands about what the service stores beside files: adapters."""

from motet.api.client import Client
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables import adapters_table


def adapters(limit: Limit = 100, json: Json = False) -> None:
    """List adapters, the newest first. `motet download ADAPTER` fetches one, `motet delete ADAPTER` deletes it."""
    output = Output(json)
    with Client() as client:
        found = first(limit, client.adapters.list())
    output.give(found, lambda: adapters_table(found) if found else "no adapters yet")
