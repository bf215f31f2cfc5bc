"""The numbers of configurations as people read them: as few digits as tell those of one task apart. Pure."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

LEAST, MOST = 3, 12  # significant digits; what differs beyond the twelfth is the rounding of whatever computed it
EXACT = 17  # significant digits that every float is told by
NONE = "\u2013"
_TYPED = 5  # significant digits that a person types: a number of no more than these is not rounded
_WHOLE = 1e6  # whole numbers below it are written without an exponent


def digits_apart(values: Iterable[object]) -> int:
    """How many significant digits, from LEAST to MOST, keep different floats among the values different."""
    known = {value for value in values if isinstance(value, float) and math.isfinite(value)}
    distinct = len({number_text(value, MOST) for value in known})
    return next((n for n in range(LEAST, MOST) if len({number_text(value, n) for value in known}) == distinct), MOST)


def number_text(value: float, digits: int = LEAST) -> str:
    """3e-05, 0.0003, 16: rounded to so many significant digits, without zeros at the end. Whole numbers are not rounded, nor
    are those of few digits."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < _WHOLE):
        return str(int(value))
    if digits >= EXACT:
        return repr(value)
    if float(f"{value:.{MOST}g}") == float(f"{value:.{_TYPED}g}"):
        digits = max(digits, _TYPED)
    return f"{float(f'{value:.{digits}g}'):.{max(digits, 6)}g}"


def meant_text(value: float) -> str:
    """The number for a field that is read again: without the error of the arithmetic that made it, where the digits before
    that error end in zeros; otherwise exactly."""
    short = number_text(value, MOST)
    return short if short == number_text(value, MOST - 3) else number_text(value, EXACT)


def meant(value: Any) -> Any:
    """A JSON document whose numbers are as `meant_text` has them."""
    return _numbers_as(value, meant_text)


def field_texts(values: Sequence[Any]) -> list[str]:
    """The values of one field of several specs: different ones have different texts."""
    digits = digits_apart(number for value in values for number in _numbers(value))
    return [field_text(value, digits) for value in values]


def field_text(value: Any, digits: int = EXACT) -> str:
    """A field of a spec, its numbers in so many significant digits; lists with commas, and what is within them as JSON."""
    if isinstance(value, list | tuple):
        return (
            "none"
            if not value
            else ", ".join(
                _json(one, digits) if isinstance(one, Mapping | list | tuple) else _word(one, digits) for one in value
            )
        )
    return _json(value, digits) if isinstance(value, Mapping) else _word(value, digits)


def _word(value: Any, digits: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return NONE
    return number_text(value, digits) if isinstance(value, int | float) else str(value)


def _json(value: Mapping[str, Any] | Sequence[Any], digits: int) -> str:
    """Of a mapping the fields that are set."""
    fields = {name: held for name, held in value.items() if held is not None} if isinstance(value, Mapping) else value
    return json.dumps(_numbers_as(fields, lambda number: number_text(number, digits)), ensure_ascii=False)


def _numbers_as(value: Any, text: Callable[[float], str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers_as(held, text) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_as(one, text) for one in value]
    return json.loads(text(value)) if isinstance(value, float) and math.isfinite(value) else value


def _numbers(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(one)
    else:
        yield value
