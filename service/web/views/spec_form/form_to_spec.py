"""The form as it was sent, read into a spec. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from contract.values.strict_json import NotStrict, read_strictly
from service.web.views.spec_form.form_fields import LISTS, MODULE_SETS, MORE, ONE, Fields, Read, Unreadable

_OF_N_JOBS = ("random", "tpe")  # methods that try `n` combinations


def spec_of_form(
    fields: Fields, schedules: list[str], modules: list[str], metrics: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec that the form asks for, unchecked, and what cannot be read, by its path in the spec: the spec holds it as typed.
    Empty fields are left out."""
    spec: dict[str, Any] = {}
    mistakes: dict[str, str] = {}

    def value(path: str, read: Read, text: str) -> Any:
        try:
            return read(text)
        except Unreadable as error:
            mistakes[path] = str(error)
            return text

    if fields.get("evaluation"):
        put(spec, "evaluation.metrics", [value("evaluation.metrics", _metric, one) for one in metrics])
    for path, read in ONE.items():
        if not _idle(path, fields) and (text := fields.get(path, "").strip()):
            put(spec, path, value(path, read, text))
    for path, read in LISTS.items():
        if words := fields.get(path, "").replace(",", " ").split():
            put(spec, path, [value(f"{path}[{at}]", read, word) for at, word in enumerate(words)])
    if schedules and schedules != ["constant"]:
        put(spec, "search_space.schedule", schedules)
    if modules and modules != ["all"]:
        put(spec, "search_space.target_modules", [MODULE_SETS.get(name) or name.split(", ") for name in modules])
    if fields.get("search_space.method") in _OF_N_JOBS and not fields.get("search_space.n", "").strip():
        mistakes["search_space.n"] = "this method needs the number of jobs to try"
    _labels(fields.get("labels", ""), spec, mistakes)
    _more(fields.get(MORE, ""), spec, mistakes)
    if not isinstance(spec.get("dataset", {}), dict) or not spec.get("dataset", {}).get("file_id"):
        mistakes["dataset.file_id"] = "choose a file, or upload one"
    return spec, mistakes


def _idle(path: str, fields: Fields) -> bool:
    """Whether the field does not count, as another one is not set so."""
    if path == "search_space.n":
        return fields.get("search_space.method") not in _OF_N_JOBS
    return path.startswith("evaluation.") and not fields.get("evaluation")


def _labels(text: str, spec: dict[str, Any], mistakes: dict[str, str]) -> None:
    labels = [line.partition("=") for line in text.splitlines() if line.strip()]
    if without := [key for key, equals, _ in labels if not equals]:
        mistakes["labels"] = f"{', '.join(map(repr, without))}: no '='; write one key=value a line"
    if again := [key for key, times in Counter(key.strip() for key, _, _ in labels).items() if times > 1]:
        mistakes["labels"] = f"{', '.join(map(repr, again))}: set twice; leave one line of each"
    if labels:
        spec["labels"] = {key.strip(): value.strip() for key, _, value in labels}


def _more(text: str, spec: dict[str, Any], mistakes: dict[str, str]) -> None:
    """Add lines of path=value, the value as JSON or as plain text. A field that the form has set already is a mistake."""
    for line in filter(str.strip, text.replace("\r", "").split("\n")):
        path, equals, said = (part.strip() for part in line.partition("="))
        if not equals or not all(path.split(".")):
            mistakes[MORE] = f"{line.strip()[:80]!r} is no field; write one path=value a line, such as isolation=dedicated"
        elif isinstance(value := _json(said), NotStrict):
            mistakes[MORE] = f"{path[:80]!r} {value}"
        elif not put(spec, path, value):
            mistakes[MORE] = f"{path[:80]!r} is set twice, here and by a field above or a line before; leave one of them"


def _json(said: str) -> Any:
    """A JSON value, NotStrict where readers disagree on it, or the text itself if it is none."""
    try:
        return read_strictly(said)
    except NotStrict as error:
        return error
    except (ValueError, RecursionError):
        return said


def _metric(said: str) -> Any:
    """A metric by its type, or as JSON if it has settings."""
    try:
        return read_strictly(said) if said.startswith("{") else {"type": said}
    except NotStrict as error:
        raise Unreadable(f"{said!r} {error}") from None
    except (ValueError, RecursionError):
        raise Unreadable(f"{said!r} is no JSON") from None


def put(spec: dict[str, Any], path: str, value: Any) -> bool:
    """Set the value at a dotted path; false, and nothing is changed, if there is one already. Two objects become one."""
    *above, name = path.split(".")
    for part in above:
        spec = spec.setdefault(part, {})
        if not isinstance(spec, dict):
            return False
    if name not in spec:
        spec[name] = value
        return True
    held = spec[name]
    if not isinstance(held, dict) or not isinstance(value, dict) or held.keys() & value.keys():
        return False
    held |= value
    return True
