"""Renders a base model's chat template in Jinja's sandbox, which limits it to messages and tools. Knows no tokenizer.

Provides the extensions that Hub templates use (tojson, raise_exception, strftime_now, generation, break and continue), as
transformers does for the same template when a worker trains.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import jinja2.ext
import jinja2.nodes
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from contract.rows.tokenizer import TEMPLATE_FAULTS, Messages, TemplateError, Tools


class Template:
    """An untrusted template from a model's owner. `words`: the special tokens, by the names that it may use."""

    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        """Raises TemplateError if Jinja cannot parse it."""
        self.source, self._words = source, dict(words)
        try:
            self._template = _environment().from_string(source)
        except (JinjaError, *TEMPLATE_FAULTS) as error:
            raise TemplateError.of(error) from None

    def write(self, messages: Messages, add_generation_prompt: bool, now: datetime | None, tools: Tools | None = None) -> str:
        """Render the conversation as text; `now` is the time for strftime_now. Raises TemplateError."""
        given = [dict(message) for message in messages]
        told = {"messages": given, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(**self._words, **told, strftime_now=partial(_strftime, now))
        except TemplateError:
            raise
        except (JinjaError, *TEMPLATE_FAULTS) as error:
            raise TemplateError.of(error) from None


class _Generation(jinja2.ext.Extension):
    """Parses `{% generation %}`, which marks the assistant's text; here it renders its content unchanged."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's name for it)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Names(Namespace):
    """A namespace that refuses names with a leading underscore, which lead to Python internals."""

    def __init__(*args: Any, **given: Any) -> None:  # self may be a name that a template sets
        made = dict(*args[1:], **given)
        for name in made:
            _must_be_plain(name)
        Namespace.__init__(args[0], made)

    def __setitem__(self, name: str, value: Any) -> None:
        _must_be_plain(name)
        Namespace.__setitem__(self, name, value)


class _Dictionary:
    """`dict`, reduced to what templates need."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        return dict.fromkeys(*given)


def _must_be_plain(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _as_json
    made.globals |= {
        "raise_exception": _refuse,
        "dict": _Dictionary(),
        "namespace": _Names,
    }
    return made


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    raise JinjaError(message)


def _strftime(now: datetime | None, format: str) -> str:
    if now is None:
        raise TemplateError.undated()
    return now.strftime(format)
