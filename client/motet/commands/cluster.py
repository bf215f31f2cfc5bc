"""Commands about the fleet: its timeline, nodes, the schedule."""

from rich.console import Group
from rich.text import Text

from motet.api.client import Client
from motet.commands.admin import admin
from motet.commands.common import Json, Output
from motet.display.plan_timeline import Timeline
from motet.display.tables.fleet_tables import autoscaling_table, nodes_table, running_table, waiting_table


def cluster(json: Json = False) -> None:
    """What runs where, what is planned, and until when, as bars over time."""
    output = Output(json)
    with Client() as client:
        found = client.schedule()
    output.give(found, lambda: Timeline(found))


def schedule(json: Json = False) -> None:
    """What runs where and until when; what waits, why, and when it is expected to start."""
    output = Output(json)
    with Client() as client:
        found = client.schedule()
    running = running_table(found) if found.nodes else Text("no node is ready")
    output.give(found, lambda: Group(running, Text(), waiting_table(found)) if found.waiting else running)


def nodes(json: Json = False) -> None:
    """List the machines of the fleet. Needs an admin key."""
    output = Output(json)
    with Client() as client:
        found = list(client.admin.nodes())
    output.give(found, lambda: nodes_table(found) if found else "no node has joined yet")


@admin.command()
def autoscaling(json: Json = False) -> None:
    """GPUs that the queue asks for beyond what is free, and nodes that are idle: what the autoscaling webhook is told."""
    output = Output(json)
    with Client() as client:
        found = client.admin.autoscaling()
    output.give(found, lambda: autoscaling_table(found))
