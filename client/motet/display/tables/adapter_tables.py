"""Lists of adapters, of merged models and of pushes to the hub: values in, tables out. Knows no service."""

from collections.abc import Iterable

from rich.console import RenderableType

from contract.wording.step_words import mean_of_steps
from motet.api.resources import (
    Adapter,
    HubPush,
    MergedModel,
)
from motet.display.columns import Column, Columns
from motet.display.durations import ago


def adapters_table(adapters: Iterable[Adapter]) -> RenderableType:
    columns = (
        Column("adapter"),
        Column("task", need=1),
        Column("base", need=5),
        Column("step", need=3, right=True),
        Column("val loss", right=True),
        Column("bytes", need=2, right=True),
        Column("stored", need=4),
    )
    rows = [
        (
            one.id,
            one.task_id or f"uploaded{f': {one.name}' if one.name else ''}",
            one.base_model or "",
            mean_of_steps(one.averaged_steps) or (str(one.step) if one.step is not None else ""),
            f"{one.val_loss:.4f}" if one.val_loss is not None else "",
            f"{one.bytes:,}",
            ago(one.created_at),
        )
        for one in adapters
    ]
    return Columns(columns, rows)


def merged_models_table(merged: Iterable[MergedModel]) -> RenderableType:
    columns = (
        Column("merged model"),
        Column("adapter", need=1),
        Column("base", need=2),
        Column("status"),
        Column("bytes", need=3, right=True),
        Column("asked for", need=4),
    )
    rows = [(one.id, one.adapter_id, one.base_model, one.status, f"{one.bytes:,}", ago(one.created_at)) for one in merged]
    return Columns(columns, rows)


def hub_pushes_table(pushes: Iterable[HubPush]) -> RenderableType:
    columns = (
        Column("push"),
        Column("what", need=1),
        Column("repository"),
        Column("branch", need=2),
        Column("status"),
        Column("bytes", need=3, right=True),
        Column("asked for", need=4),
    )
    rows = [
        (
            one.id,
            one.adapter_id or one.merged_model_id or "",
            one.repository,
            one.revision,
            one.status,
            f"{one.sent_bytes:,}/{one.bytes:,}",
            ago(one.created_at),
        )
        for one in pushes
    ]
    return Columns(columns, rows)
