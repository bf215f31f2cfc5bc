"""Nodes, base models, the schedule and what autoscaling is told: values in, tables out. Knows no service."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from contract.gpu_counts import device_word, gpu_count
from motet.api.resources import (
    Autoscaling,
    BaseCopy,
    Model,
    Node,
    Schedule,
    ScheduledNode,
)
from motet.display.columns import Column, Columns
from motet.display.durations import ago, until

OTHERS = "(another tenant's)"


def _named(node: ScheduledNode) -> str:
    """The node's name, and why it takes nothing: `motet doctor` has the sentence."""
    why = [*(["drained"] if node.drained else []), *([node.status] if node.status != "ready" else [])]
    return f"{node.name} ({', '.join(why)})" if why else node.name


def running_table(schedule: Schedule) -> RenderableType:
    """Each node with its running tasks and their expected ends."""
    columns = (
        Column("node"),
        Column(f"{device_word(node.device_type for node in schedule.nodes)}s"),
        Column("free", need=2, right=True),
        Column("runs"),
        Column("until", need=1),
    )
    rows = [
        (
            _named(node),
            gpu_count(node.gpus, node.device_type),
            str(node.free),
            "\n".join(f"{one.task_id or OTHERS} on {one.gpus}{' (leaving)' if one.leaving else ''}" for one in node.running),
            "\n".join(until(one.expected_end) for one in node.running),
        )
        for node in schedule.nodes
    ]
    return Columns(columns, rows)


def waiting_table(schedule: Schedule) -> RenderableType:
    """The queue in the order in which tasks are expected to start; below, why each of one's own waits."""
    columns = (
        Column("place", right=True),
        Column("task"),
        Column("name", need=2, folds=True),
        Column(f"{device_word(node.device_type for node in schedule.nodes)}s", need=1, right=True),
        Column("starts"),
        Column("ends", need=1),
    )
    rows = [
        (
            str(one.place or ""),
            one.task_id or OTHERS,
            one.name or "",
            str(one.gpus),
            until(one.expected_start),
            until(one.expected_end),
        )
        for one in schedule.waiting
    ]
    more = schedule.waiting_total - len(schedule.waiting)
    whys = [Text(f"{one.task_id} waits: {one.sentence}") for one in schedule.waiting if one.sentence]
    rest = [Text(f"and {more:,} more", style="dim")] if more > 0 else []
    return Group(Columns(columns, rows), *rest, *([Text(), *whys] if whys else []))


def models_table(models: Iterable[Model]) -> RenderableType:
    columns = (
        Column("model"),
        Column("parameters", right=True),
        Column("architecture", need=1),
        Column("longest", need=2, right=True),
        Column("revision", need=3),
        Column("in storage", need=2),
    )
    rows = [
        (m.name, f"{m.parameters:,}", m.architecture, f"{m.max_position:,}", m.revision[:12], _copied(m.storage))
        for m in models
    ]
    return Columns(columns, rows)


def _copied(copy: BaseCopy | None) -> str:
    """How far a base's files are in storage."""
    if copy is None:
        return "no"
    if copy.status == "stored":
        return "yes"
    why = f": {copy.error.detail}" if copy.error is not None else ""
    return f"{copy.status}, {copy.received_bytes / 1e9:.2f} of {copy.total_bytes / 1e9:.2f} GB{why}"


def nodes_table(nodes: Iterable[Node]) -> RenderableType:
    nodes = list(nodes)
    word = device_word(device.type for node in nodes for device in node.devices)
    columns = (
        Column("node"),
        Column("status"),
        Column(f"{word}s"),
        Column(f"tokens/s of a {word}", need=3, folds=True),
        Column("runs", need=1),
        Column("last heartbeat", need=2),
    )
    rows = []
    for node in nodes:
        types = sorted({device.type for device in node.devices})
        counts = [gpu_count(sum(device.type == type for device in node.devices), type) for type in types]
        speeds = [f"{speed:,.0f} ({model})" for model, speed in node.tokens_per_second.items()]
        running = "\n".join(one.task_id for one in node.running)
        heard = ago(node.heartbeat_at) if node.heartbeat_at else ""
        rows.append(
            (
                node.name,
                node.status + (", drained" if node.drained_at else ""),
                ", ".join(counts),
                ", ".join(speeds),
                running,
                heard,
            )
        )
    return Columns(columns, rows)


def autoscaling_table(found: Autoscaling) -> RenderableType:
    """What the queue asks for by width, what is free, and the nodes that are idle."""
    columns = (
        Column("GPUs of a task", right=True),
        Column("tasks", right=True),
        Column("GPUs", right=True),
        Column("missing", right=True),
        Column("queued", need=1),
    )
    rows = [
        (str(one.width), f"{one.tasks:,}", f"{one.gpus:,}", f"{one.missing_gpus:,}", ago(one.waiting_since))
        for one in found.wanted
    ]
    wanted = Columns(columns, rows) if rows else Text("no task waits for GPUs")
    free = Text("free: " + (", ".join(gpu_count(one.gpus, one.type) for one in found.free) or "none"))
    idle = [
        Text(f"{node.name} is idle: {gpu_count(node.gpus, node.type)}{', drained' * node.drained}; busy {ago(node.idle_since)}")
        for node in found.idle_nodes
    ]
    return Group(wanted, free, *(idle or [Text("no node is idle")]))
