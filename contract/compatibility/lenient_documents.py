"""Lenient reading of stored and sent documents (specs, job configurations), so that adjacent versions interoperate.

Only the public API validates strictly. A document that passed it is later read with unknown fields preserved, since a newer
version wrote them. Knows no field names and no storage.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
        kept = value.model_extra or {}
        return {name: _and_kept(getattr(value, name), said) for name, said in dumped.items() if name not in kept} | kept
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


def unread_fields(config: JobConfig) -> list[str]:
    """The fields of a ShownConfig that are not readable."""
    return [name for name in JobConfig.model_fields if not is_readable(config, name)]


def is_readable(config: JobConfig, name: str) -> bool:
    """Whether a ShownConfig has this field from its document. STAND_IN stands for a required one that the document lacks, and
    for a value of a kind that cannot be displayed."""
    given = name in config.model_fields_set or not JobConfig.model_fields[name].is_required()
    return given and name not in (config.model_extra or ())


def value_of(config: JobConfig, name: str) -> Any:
    """The field of a ShownConfig; None where it is not readable."""
    return getattr(config, name) if is_readable(config, name) else None


def have_one(configs: Iterable[JobConfig], name: str) -> bool:
    """Whether the documents of these ShownConfigs have one value of the field. One that is not readable equals itself alone."""
    said = [(config.model_extra or {}).get(name, getattr(config, name)) for config in configs]
    return all(value == said[0] for value in said)


_MOST = 1e100  # of a displayed number, so that ratios and sums of several are finite too


def _is_number(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and 0 < said <= _MOST


def _is_texts(said: Any) -> bool:
    return isinstance(said, list | tuple) and len(said) > 0 and all(isinstance(one, str) for one in said)


# what code that displays a field can take beyond this version's limits, by the kind of its value in STAND_IN
_KINDS: dict[type, Callable[[Any], bool]] = {
    float: _is_number,
    int: lambda said: isinstance(said, int) and _is_number(said),
    str: lambda said: isinstance(said, str),
    bool: lambda said: isinstance(said, bool),
    tuple: _is_texts,
    type(None): _is_number,  # a number that may be left out
}
_LIKE = {name: _KINDS[type(value)] for name, value in STAND_IN.__dict__.items()}


def _shown(document: Any) -> Any:
    """A configuration for code that only displays it or passes it on. Attributes are what a newer version may mean, or else
    those of STAND_IN, as `unread_fields` tells. `sent` gives the document as it came: a value that STAND_IN replaces is kept
    under its name among the unknown fields."""
    if not isinstance(document, Mapping):
        return document
    try:
        return read_leniently(JobConfig, document)
    except ValidationError as error:
        wrong = {str(one["loc"][0]) for one in error.errors(include_context=False, include_input=False)}
    refused = {name: said for name, said in document.items() if name in wrong}
    rest = {name: said for name, said in document.items() if name not in wrong}
    newer = {name: _hashable(said) for name, said in refused.items() if _LIKE[name](said)}
    read = read_leniently(JobConfig, {**STAND_IN.__dict__, **rest})
    made = JobConfig.model_construct(JobConfig.model_fields.keys() & (rest.keys() | newer.keys()), **read.__dict__ | newer)
    replaced = {name: said for name, said in refused.items() if name not in newer}
    object.__setattr__(made, "__pydantic_extra__", (read.model_extra or {}) | replaced)
    return made


def _hashable(said: Any) -> Any:
    return tuple(said) if isinstance(said, list) else said


class _OwnSchema:
    """Keeps the model's own JSON Schema, which its serializer would otherwise replace."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core["schema"])  # the schema of the model inside the validator


# Types for fields of messages: read leniently, sent on unchanged.
SentSpec = Annotated[TaskSpec, _lenient(TaskSpec), PlainSerializer(sent)]
SentConfig = Annotated[JobConfig, _lenient(JobConfig), PlainSerializer(sent)]
ShownConfig = Annotated[JobConfig, BeforeValidator(_shown), PlainSerializer(sent), _OwnSchema()]
