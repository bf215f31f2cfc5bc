"""JSON as all readers understand it alike: no key twice in an object, no NaN, no number that would be read as infinite."""

import json
import math
import sys
from collections import Counter
from typing import Any


class NotStrict(ValueError):
    """JSON that Python would read, and others otherwise. `key`: that an object has twice; None: a number is to blame."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def read_strictly(source: str) -> Any:
    """The value. Raises NotStrict; JSONDecodeError or RecursionError for what cannot be read at all."""
    try:
        return _DECODER.decode(source)
    except (json.JSONDecodeError, NotStrict):
        raise
    except ValueError:  # of int
        raise NotStrict(too_many_digits()) from None


def too_many_digits() -> str:
    """Why a whole number is not read that would take long to."""
    return f"holds a whole number of more than {sys.get_int_max_str_digits():,} digits; write a smaller one, or a text"


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, as json's object_pairs_hook. Raises NotStrict."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]  # in one pass: an object may have 400,000 keys
        raise NotStrict(f"has the key {twice!r:.60} twice in one object", twice)
    return made


def _constant(name: str) -> Any:
    raise NotStrict(f"holds {name}, which is not JSON")


def _float(number: str) -> float:
    made = float(number)
    if math.isinf(made):  # a template would write Infinity
        raise NotStrict(f"holds {number:.40}, beyond the numbers up to 1.8e308; write a smaller one, or a text")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=object_of, parse_constant=_constant, parse_float=_float)
