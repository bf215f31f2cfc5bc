"""A duration in words, the same in the command line and in the dashboard. Pure."""

import math

MINUTE, HOUR, DAY = 60, 3600, 86400
_EXACT = 10 * MINUTE  # below it seconds are said


def duration(seconds: float) -> str:
    """40 s, 1 min 35 s, 12 min, 3 h 20 min, 11 h, 2 d 4 h, 12 d: rounded, halves up, to the last unit that is said. Of what is
    no number or has no end: a time that is not known."""
    if not math.isfinite(seconds):
        return "a time that is not known"
    whole = max(0, int(seconds + 0.5))
    if whole < _EXACT:
        return _said(whole, MINUTE, "min", 1, "s")
    if (minutes := (whole + MINUTE // 2) // MINUTE) < 10 * HOUR / MINUTE:
        return _said(minutes * MINUTE, HOUR, "h", MINUTE, "min")
    hours = (whole + HOUR // 2) // HOUR
    if hours < DAY / HOUR:
        return f"{hours} h"
    if hours < 10 * DAY / HOUR:
        return _said(hours * HOUR, DAY, "d", HOUR, "h")
    return f"{(whole + DAY // 2) // DAY} d"


def _said(seconds: int, unit: int, name: str, smaller: int, smaller_name: str) -> str:
    big, small = seconds // unit, seconds % unit // smaller
    return " ".join([*([f"{big} {name}"] if big else []), *([f"{small} {smaller_name}"] if small or not big else [])])
