"""Values in a line of a data set: the line as JSON, its texts, and what a mistake in them is called. Pure."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from contract.values.strict_json import NotStrict, read_strictly
from contract.wording.other_formats import not_json, row_not_json


@dataclass(frozen=True)
class RowMistake:
    """One mistake in a row. `path` is within the row, such as messages[1].role; None means the row itself."""

    path: str | None
    code: str
    message: str


class UnreadableJson(ValueError):
    """JSON that cannot be read. `code` names the mistake."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read(line: bytes) -> Any:
    """A line as JSON. Raises UnreadableJson."""
    if line.startswith(BOM_UTF8):
        raise UnreadableJson("byte_order_mark", "begins with a byte order mark, which may only begin the file; remove it")
    try:
        source = line.decode()
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start + 1} of the line"
        raise UnreadableJson("not_utf8", f"is not UTF-8: {where}; save the file as UTF-8") from None
    return decoded(source, row_not_json)


def decoded(source: str, told: Callable[[json.JSONDecodeError], str] = not_json) -> Any:
    """A text as JSON, strictly: no key twice, no NaN, no number that would be read as infinite. Raises UnreadableJson; `told`
    words a mistake in the syntax."""
    try:
        return read_strictly(source)
    except json.JSONDecodeError as error:
        raise UnreadableJson("not_json", told(error)) from None
    except RecursionError:
        raise UnreadableJson("not_json", "is nested too deeply") from None
    except NotStrict as error:
        raise UnreadableJson("not_json" if error.key is None else "duplicate_key", str(error)) from None


def text(path: str, holder: dict[str, Any], name: str, may_be_empty: bool = False) -> Iterator[RowMistake]:
    """Check the text that `holder` must have under this name."""
    if name not in holder:
        yield RowMistake(path, "missing", "is required")
        return
    held = holder[name]
    if not isinstance(held, str):
        yield RowMistake(path, "not_a_text", f"must be a text, got {kind(held)}")
    elif not may_be_empty and not held.strip():
        yield RowMistake(path, "empty", "holds nothing but white space" if held else "is empty")
    elif has_surrogate(held):
        yield RowMistake(path, "lone_surrogate", "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")


def has_surrogate(text: str) -> bool:
    """Whether the text has half of a surrogate pair, which UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def kind(value: Any) -> str:
    """A JSON value's type, in words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else kinds[type(value)]
