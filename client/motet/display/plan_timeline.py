"""The cluster's plan as bars over time: a line for each task that runs, by node, and for each that waits.

Values in, text out."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from contract.gpu_counts import gpu_count
from contract.wording.duration_words import duration
from motet.api.resources import Schedule
from motet.display.tables.fleet_tables import OTHERS

_PAST = 0.15  # part of the width that shows what has been
_LEAST = timedelta(minutes=1)  # shown ahead
_MOST = timedelta(days=7)  # a bar that begins later does not set the scale: others would shrink to nothing
_UNKNOWN = timedelta(minutes=5)  # drawn of a task whose end nobody expects


@dataclass(frozen=True)
class _Bar:
    name: str
    gpus: int
    start: datetime
    end: datetime | None
    runs: bool


class Timeline:
    """Drawn for the width at hand: █ runs, ░ is planned, │ is now."""

    def __init__(self, schedule: Schedule, now: datetime | None = None) -> None:
        self._schedule, self._now = schedule, now or datetime.now(UTC)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = [bar for _, _, group in self._groups() for bar in group]
        if not self._schedule.nodes:
            yield Text("no node is ready")
            return
        named = min(max((len(bar.name) for bar in bars), default=4) + 2, 40)
        width = max(options.max_width - named - 12, 20)
        ends = [bar.end or bar.start + _UNKNOWN for bar in bars if bar.start < self._now + _MOST]
        ahead = max([_LEAST, *(end - self._now for end in ends)])
        begin = self._now - ahead * (_PAST / (1 - _PAST))
        scale = width / (ahead / (1 - _PAST)).total_seconds()
        for heading, style, group in self._groups():
            yield Text(heading, style=style)
            for bar in group:
                yield self._line(bar, named, width, begin, scale)
        now = round((self._now - begin).total_seconds() * scale)
        legend = f"{'':{named + 4}}{'now':>{now + 2}}{f'in {duration(ahead.total_seconds())}':>{max(8, width - now - 2)}}"
        yield Text(legend, style="dim")

    def _groups(self) -> Iterator[tuple[str, str, list[_Bar]]]:
        for node in self._schedule.nodes:
            closed = (", drained" if node.drained else "") + (f", {node.status}" if node.status != "ready" else "")
            running = [
                _Bar(one.name or one.task_id or OTHERS, one.gpus, one.since, one.expected_end, True) for one in node.running
            ]
            running += [_Bar(f"answers for {one.base_model}", 1, one.since, self._now, True) for one in node.answering]
            yield f"{node.name}: {gpu_count(node.gpus, node.device_type)}, {node.free} free{closed}", "bold", running
        waiting = [
            _Bar(one.name or one.task_id or OTHERS, one.gpus, one.expected_start, one.expected_end, False)
            for one in self._schedule.waiting
            if one.expected_start is not None
        ]
        without = self._schedule.waiting_total - len(waiting)
        if self._schedule.waiting_total:
            yield (
                f"waiting: {self._schedule.waiting_total}{f', {without} of them without a start' if without else ''}",
                "bold",
                waiting,
            )

    def _line(self, bar: _Bar, named: int, width: int, begin: datetime, scale: float) -> Text:
        def at(moment: datetime) -> int:
            return min(width, max(0, round((moment - begin).total_seconds() * scale)))

        left, right = at(bar.start), at(bar.end or max(bar.start, self._now) + _UNKNOWN)
        cells = [" "] * width
        for place in range(left, max(right, left + 1)):
            if place < width:
                cells[place] = "█" if bar.runs else "░"
        now = at(self._now)
        if now < width and cells[now] == " ":
            cells[now] = "│"
        if left == width:
            words = f"in {duration((bar.start - self._now).total_seconds())}"
            cells[-len(words) :] = words
        if bar.end is None and right < width:
            cells[right] = "?"
        name = bar.name if len(bar.name) < named else bar.name[: named - 2] + "…"
        return Text(f"  {name:{named}}{bar.gpus:>2} {''.join(cells)}", style="cyan" if bar.runs else "yellow", no_wrap=True)
