"""What is wrong with a field of a spec, as a sentence: pydantic's error in Motet's words, with how to write it instead.

Both the service (REST bodies) and the client (spec files) say it so. Knows no body, no file and no line.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from contract.wording.pattern_words import PATTERN_WORDS

_SHOWN = 80  # characters of a value that a message repeats
# fields whose values no message repeats: each holds a secret, or what whoever knows it may do something with
_SECRET = frozenset(
    ("access_key_id", "api_key", "credential", "credentials", "handle", "headers", "secret_access_key", "session_token")
) | {"token", "url"}
_SCHEME = re.compile(r"['\"]?([A-Za-z][\w+.-]*://)?")
_WANTED = {
    "list_type": "must be a list, such as [{}]",
    "tuple_type": "must be a list, such as [{}]",
    "dict_type": "must be an object of fields and their values",
    "model_type": "must be an object{}",
    "model_attributes_type": "must be an object{}",
}
_PLAINER = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_unicode": "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character",
}
_AS_JSON = {None: "null", True: "true", False: "false"}
_QUOTED = re.compile(r"'([a-z_][\w.]*)'")
_UNITS = {"too_short": "items", "string_too_short": "characters", "too_long": "items", "string_too_long": "characters"}
_MOMENT = "2027-01-31T12:00:00Z"


def without_echoes(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """pydantic's errors without a list's being too short where its items are wrong: it counts the valid ones alone."""
    wrong = {tuple(one["loc"][:-1]) for one in found}
    return [one for one in found if one["type"] != "too_short" or tuple(one["loc"]) not in wrong]


def message(found: Mapping[str, Any], known: Sequence[str] = ()) -> str:
    """One pydantic error as a sentence. `known`: the fields of the object where an unknown field stands, or of the object
    that is missing."""
    kind, value = str(found["type"]), found["input"]
    repeats = _SECRET.isdisjoint(found["loc"])
    if kind == "missing" and found["msg"] == "Field required":  # a validator of ours says why
        return "is required"
    if kind == "extra_forbidden":
        return "is not a known field" + _did_you_mean(str(found["loc"][-1]), known)
    said = str(found["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if kind in _WANTED:
        scalar = isinstance(value, str | int | float)
        fields = f" with fields of {', '.join(known)}" if known else " of fields and their values"
        item = shown(json.dumps(value, ensure_ascii=False)) if scalar and repeats else "..."
        said = _WANTED[kind].format(item if "list" in _WANTED[kind] else fields)
    if kind in ("too_short", "string_too_short"):
        least = found["ctx"]["min_length"]
        return "must not be empty" if least == 1 else f"must have at least {least} {_UNITS[kind]}, got {len(value)}"
    if kind in ("too_long", "string_too_long"):
        return f"must have at most {found['ctx']['max_length']} {_UNITS[kind]}, got {len(value)}"
    if kind == "union_tag_not_found":
        return f"must say its {found['ctx']['discriminator']}"
    if kind == "union_tag_invalid":
        tag, tags = shown(repr(found["ctx"]["tag"])), str(found["ctx"]["expected_tags"])
        return f"has the {found['ctx']['discriminator']} {tag}; it must be one of {tags}"
    if kind == "string_pattern_mismatch":
        said = PATTERN_WORDS.get(str(found["ctx"]["pattern"]), said)
    if kind == "timezone_aware":
        said = f"must say its time zone, as {_MOMENT} does"
    said = _PLAINER.get(kind, said)
    if kind != "value_error" and (value is None or (repeats and isinstance(value, str | int | float))):
        said += f", got {_AS_JSON[value] if value is None or isinstance(value, bool) else shown(repr(value))}"
    if kind.startswith("datetime_"):
        said += f"; write it as {_MOMENT}"
    return said


def named_in(message: str, known: Sequence[str]) -> str | None:
    """Of fields that do not go together, the one that the message quotes first: pydantic places it at the whole object."""
    return next((name for name in _QUOTED.findall(message) if name.partition(".")[0] in known), None)


def shown(text: str) -> str:
    """A user's text made safe to repeat: without a URL's user name, password, query and fragment, which may be secrets,
    shortened, and without lone surrogates, which JSON cannot carry."""
    text = url_without_secrets(text)
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return text.encode(errors="backslashreplace").decode()


def url_without_secrets(text: str) -> str:
    """The text, where it is a URL, or may be one whose scheme was forgotten, without what may be a secret of it. It may be as
    long as a request's body, so no pattern is searched for in it."""
    scheme = _SCHEME.match(text)
    assert scheme is not None, "it may be empty"
    begin = scheme.end()
    if scheme[1] is None and any(map(str.isspace, text)):
        return text
    host = text[begin:].partition("/")[0]
    before, _, after = text[begin:].rpartition("@")
    user = host.rpartition("@")[0] or host  # a password may hold any letter, a slash too: then this is a part of it
    if before and (":" in user or (scheme[1] is not None and "@" in host)):
        text = f"{text[:begin]}…@{after}"
    ends = [at for at in (text.find("?", begin), text.find("#", begin)) if at >= 0]
    if ends and (scheme[1] is not None or "=" in text[min(ends) :]):
        text = text[: min(ends) + 1] + "…" + (text[-1] if text[-1] in "'\"" else "")
    return text


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; the fields here are: {', '.join(known)}" if known else ""
