"""What a task would take, and its jobs. Values in, tables out."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from contract.gpu_counts import device_word, devices, gpu_count
from contract.job_config import JobConfig
from contract.wording.config_labels import digits_of, label, varying
from contract.wording.duration_words import duration
from motet.api.resources import Estimate
from motet.display.columns import Column, Columns
from motet.display.durations import until

_SHOWN = 40  # jobs


def estimate_table(estimate: Estimate, jobs: Sequence[JobConfig]) -> RenderableType:
    """The numbers of the estimate, what is wrong with rows, and the first jobs."""
    saved = 1 - estimate.tokens / estimate.full_tokens if estimate.full_tokens else 0.0
    seconds, word = estimate.gpu_seconds, device_word([estimate.device_type])
    facts = [
        ("jobs", f"{estimate.jobs:,}"),
        ("tokens", f"{estimate.tokens:,.0f} of {estimate.full_tokens:,.0f}, {saved:.0%} saved by early exit"),
        ("texts", _texts(estimate)),
        (f"{word} time", f"{duration(seconds.expected)} (between {duration(seconds.low)} and {duration(seconds.high)})"),
        ("on", gpu_count(estimate.gpus, estimate.device_type or "a GPU that no node has yet")),
        ("starts", _moment(estimate.expected_start, estimate.expected_start_interval)),
        ("ends", _moment(estimate.expected_end, estimate.expected_end_interval)),
        ("waits", estimate.waiting or ""),
        ("beside others", estimate.sharing or ""),
        ("base", estimate.sharding or ""),
        ("download", estimate.base_download or ""),
    ]
    facts += [
        (f"on {devices(width.gpus, word)}", f"ends {duration(width.seconds.expected)} after its start")
        for width in estimate.widths[1:]
    ]
    if len(estimate.device_types) > 1:
        facts += [
            (f"on {gpu_count(one.gpus, one.device_type)}", f"ends {duration(one.seconds.expected)} after its start")
            for one in estimate.device_types
        ]
    parts: list[RenderableType] = [Columns((Column("estimate"), Column("", folds=True)), [fact for fact in facts if fact[1]])]
    parts += [Text(f"{f'line {one.line}: ' if one.line else ''}{one.message}") for one in estimate.problems]
    axes, digits = varying(jobs), digits_of(jobs)
    shown = [(str(at), label(config, axes, digits)) for at, config in enumerate(jobs[:_SHOWN])]
    parts += [Text(), Columns((Column("job", right=True), Column("configuration", folds=True)), shown)]
    if len(jobs) > _SHOWN:
        parts.append(Text(f"and {len(jobs) - _SHOWN} more; --json lists all", style="dim"))
    return Group(*parts)


def _texts(estimate: Estimate) -> str:
    """What evaluated texts add; nothing where none is asked."""
    if estimate.text_tokens is None:
        return ""
    said = f"at most about {estimate.text_tokens:,.0f} tokens more"
    if estimate.text_gpu_seconds is None or not estimate.gpu_seconds.expected:
        return said
    share = estimate.text_gpu_seconds / estimate.gpu_seconds.expected
    return f"{said}, {duration(estimate.text_gpu_seconds)} of the time below ({share:.0%})"


def _moment(expected: datetime | None, interval: Sequence[datetime] | None) -> str:
    if expected is None:
        return "when a node joins that has room for it"
    said = [until(moment).removeprefix("in ") for moment in interval or ()]
    return until(expected) + (f" (between {' and '.join(said)} from now)" if len(set(said)) > 1 else "")
