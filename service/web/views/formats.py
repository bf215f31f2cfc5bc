"""How numbers, durations, moments and labels are written. Every filter takes None and writes a dash."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from contract.gpu_counts import device_word, devices, gpu_count
from contract.wording.configuration_numbers import NONE as NONE
from contract.wording.duration_words import duration as in_words
from contract.wording.quota_words import quota_words
from contract.wording.step_words import mean_of_steps


def significant(value: float | None, digits: int = 3) -> str:
    """Three significant digits, never in exponents between 1e-4 and 1e6."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    """A whole number with thousands' separators; millions and more shortened."""
    if value is None:
        return NONE
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f}"


def loss(value: float | None) -> str:
    """Four decimals; a loss that these would hide has significant digits."""
    if value is None or not math.isfinite(value):
        return NONE
    return significant(value) if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{significant(value)} {unit}"
        value /= 1024
    return f"{significant(value)} TiB"


def duration(seconds: float | None) -> str:
    """As people say it: 40 s, 1 min 35 s, 12 min, 3 h 20 min, 2 d 4 h."""
    return NONE if seconds is None else in_words(seconds)


def clock(moment: datetime | str | None) -> str:
    """The absolute moment, in UTC."""
    return NONE if moment is None else f"{_moment(moment):%Y-%m-%d %H:%M:%S} UTC"


def when(moment: datetime | str | None) -> str | Markup:
    """A `time` element: relative words, the absolute moment on hover. A script keeps the words right."""
    if moment is None:
        return NONE
    at = _moment(moment)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), clock(at), relative(at, datetime.now(UTC)))


def expected(moment: datetime | str | None) -> str | Markup:
    """As `when`, of a moment that is expected: once it has passed it is overdue."""
    if moment is None:
        return NONE
    at = _moment(moment)
    words = '<time datetime="{}" title="{}" data-expected>{}</time>'
    return Markup(words).format(at.isoformat(), clock(at), relative(at, datetime.now(UTC), "{} overdue"))


def relative(at: datetime, now: datetime, past: str = "{} ago") -> str:
    seconds = (at - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else past.format(duration(-seconds))


def with_title(shown: str, whole: str) -> str | Markup:
    """The text, with what it was shortened from on hover."""
    return shown if shown == whole else Markup('<span title="{}">{}</span>').format(whole, shown)


def exact(value: float | None, shown: Callable[[float | None], str] = significant) -> str | Markup:
    """The number as `shown`, with its exact value on hover."""
    if value is None:
        return NONE
    return with_title(shown(value), repr(value))


def code_spans(text: str | None) -> Markup:
    """Text whose `spans` are code, as Markdown has them; all else is shown as it is."""
    parts = escape(text or "").split("`")
    if len(parts) % 2 == 0:  # one backtick has no partner: it is a letter
        parts[-2:] = [Markup("`").join(parts[-2:])]
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _moment(moment: datetime | str) -> datetime:
    return datetime.fromisoformat(moment) if isinstance(moment, str) else moment


FILTERS: dict[str, Callable[..., Any]] = {
    "significant": significant,
    "count": count,
    "loss": loss,
    "exact_loss": lambda value: exact(value, loss),
    "exact": exact,
    "with_title": with_title,
    "percent": percent,
    "size": size,
    "duration": duration,
    "clock": clock,
    "when": when,
    "expected": expected,
    "code_spans": code_spans,
    "gpus": gpu_count,
    "device_word": device_word,
    "devices": devices,
    "quota_words": quota_words,
    "mean_of_steps": mean_of_steps,
}
