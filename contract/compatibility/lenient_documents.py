"""Lenient reading of stored and sent documents (specs, job configurations), so that adjacent versions interoperate.

Only the public API validates strictly. A document that passed it is later read with unknown fields preserved, since a newer
version wrote them. Knows no field names and no storage.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, GetJsonSchemaHandler, PlainSerializer, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from contract.job_config import STAND_IN, JobConfig
from contract.task_spec import TaskSpec

M = TypeVar("M", bound=BaseModel)


def read_leniently(model: type[M], document: Mapping[str, Any]) -> M:
    """The document as a `model`, with unknown fields preserved at every depth. Raises ValidationError."""
    return model.model_validate(document, extra="allow")


def unknown_fields(read: BaseModel, at: str = "") -> list[str]:
    """Dotted paths of the preserved fields that the models lack."""
    found = [at + name for name in read.model_extra or ()]
    for name in type(read).model_fields:
        found += _unknown_in(getattr(read, name), at + name)
    return found


def _unknown_in(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from unknown_fields(value, at + ".")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unknown_in(item, f"{at}.{number}")


def sent(document: BaseModel) -> dict[str, Any]:
    """The fields given when the model was made, JSON-ready: without defaults, with unknown fields."""
    whole: dict[str, Any] = _and_kept(document, document.model_dump(mode="json", exclude_unset=True, warnings="none"))
    return whole


def _and_kept(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel):
        known = {name: _and_kept(getattr(value, name), said) for name, said in dumped.items()}
        return known | (value.model_extra or {})
    if isinstance(value, list | tuple):
        return [_and_kept(item, said) for item, said in zip(value, dumped, strict=True)]
    return dumped


def omitted(whole: Any, given: Any) -> Any:
    """What `whole` holds and `given` omits: the defaults that complete a sent document. `combine` is the inverse."""
    if isinstance(whole, dict) and isinstance(given, dict):
        left = {name: omitted(value, given[name]) if name in given else value for name, value in whole.items()}
        return {name: value for name, value in left.items() if name not in given or value}
    if isinstance(whole, list) and isinstance(given, list) and any(isinstance(item, dict) for item in whole):
        left_each = [omitted(item, said) for item, said in zip(whole, given, strict=True)]
        return left_each if any(left_each) else None
    return None


def combine(given: Any, defaults: Any) -> Any:
    """`given`, completed with `defaults` for every field that it omits."""
    if isinstance(given, dict) and isinstance(defaults, dict):
        both = {name: combine(value, defaults.get(name)) for name, value in given.items()}
        return {**{name: value for name, value in defaults.items() if name not in given}, **both}
    if isinstance(given, list) and isinstance(defaults, list):
        return [combine(item, default) for item, default in zip(given, defaults, strict=True)]
    return given


def why_unreadable(error: ValueError) -> str:
    """The first validation error, prefixed with its field."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def _lenient(model: type[M]) -> BeforeValidator:
    return BeforeValidator(lambda said: read_leniently(model, said) if isinstance(said, Mapping) else said)


def _is_number(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool)


# what code that displays a field can take, by the kind of its value in STAND_IN
_KINDS: dict[type, Callable[[Any], bool]] = {
    float: _is_number,
    int: _is_number,
    str: lambda said: isinstance(said, str),
    bool: lambda said: isinstance(said, bool),
    tuple: lambda said: isinstance(said, list | tuple) and all(isinstance(one, str) for one in said),
    type(None): lambda said: said is None or _is_number(said),
}
_LIKE = {name: _KINDS[type(value)] for name, value in STAND_IN.__dict__.items()}


def _shown(document: Any) -> Any:
    """A configuration for code that only displays it or passes it on: values of a newer version are preserved. STAND_IN has
    what a damaged one lacks, which is not passed on."""
    if not isinstance(document, Mapping):
        return document
    try:
        return read_leniently(JobConfig, document)
    except ValidationError:
        known = {name: said for name, said in document.items() if name in _LIKE and _LIKE[name](said)}
        made = JobConfig.model_construct(set(known), **STAND_IN.__dict__ | known)
        object.__setattr__(made, "__pydantic_extra__", {k: v for k, v in document.items() if k not in JobConfig.model_fields})
        return made


class _OwnSchema:
    """Keeps the model's own JSON Schema, which its serializer would otherwise replace."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core["schema"])  # the schema of the model inside the validator


# Types for fields of messages: read leniently, sent on unchanged.
SentSpec = Annotated[TaskSpec, _lenient(TaskSpec), PlainSerializer(sent)]
SentConfig = Annotated[JobConfig, _lenient(JobConfig), PlainSerializer(sent)]
ShownConfig = Annotated[JobConfig, BeforeValidator(_shown), PlainSerializer(sent), _OwnSchema()]
