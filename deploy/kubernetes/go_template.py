"""The subset of Go's text/template, with Helm's functions, that the chart uses. Raises TemplateError for anything beyond it.

Semantics: https://pkg.go.dev/text/template and https://helm.sh/docs/chart_template_guide/. The subset: if, else, with, range,
define, end; pipelines; fields, variables, texts, integers, parentheses; the functions of `_FUNCTIONS` and `include`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(?P<left>- )?\s*(?P<code>.*?)\s*(?P<right> -)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d+)|(?P<field>\$?(?:\.[A-Za-z_]\w*)+)|(?P<dot>\.)"""
    r"""|(?P<variable>\$\w*)|(?P<word>[A-Za-z_]\w*)|(?P<sign>:=|[|(),]))"""
)


class TemplateError(ValueError):
    """A template that this subset cannot read, or a value that it cannot find. The message names file and action."""


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Action:
    """`{{ code }}`, or a block (`if`, `with`, `range`) with its two bodies."""

    where: str
    keyword: str | None
    code: str
    body: "list[_Text | _Action]" = field(default_factory=list)
    otherwise: "list[_Text | _Action]" = field(default_factory=list)


_Nodes = list["_Text | _Action"]


@dataclass
class Templates:
    """Templates that share their definitions, as the files of one chart do."""

    _definitions: dict[str, _Nodes] = field(default_factory=dict)

    def parse(self, name: str, source: str) -> None:
        """Store the template under its file's name, and its `define` blocks under theirs."""
        pieces = _pieces(name, source)
        nodes, rest = self._block(pieces, 0, name)
        if rest != len(pieces):
            raise TemplateError(f"{name}: `end` or `else` without its beginning")
        self._definitions[name] = nodes

    def render(self, name: str, dot: Any) -> str:
        """The text of template `name` with `dot` as its context."""
        if name not in self._definitions:
            raise TemplateError(f"there is no template {name!r}")
        return self._run(self._definitions[name], dot, {"$": dot})

    def _block(self, pieces: _Nodes, at: int, name: str) -> tuple[_Nodes, int]:
        """The nodes from piece `at` to the block's `end` or `else`, and that piece's index."""
        nodes: _Nodes = []
        while at < len(pieces):
            piece = pieces[at]
            if isinstance(piece, _Text) or piece.keyword is None:
                nodes.append(piece)
                at += 1
                continue
            if piece.keyword in ("end", "else"):
                break
            body, at = self._block(pieces, at + 1, name)
            otherwise: _Nodes = []
            if at < len(pieces) and _keyword(pieces[at]) == "else":
                otherwise, at = self._block(pieces, at + 1, name)
            if at == len(pieces) or _keyword(pieces[at]) != "end":
                raise TemplateError(f"{piece.where}: no `end`")
            if piece.keyword == "define":
                self._definitions[piece.code.strip('"')] = body
            else:
                nodes.append(_Action(piece.where, piece.keyword, piece.code, body, otherwise))
            at += 1
        return nodes, at

    def _run(self, nodes: _Nodes, dot: Any, variables: dict[str, Any]) -> str:
        return "".join(node.text if isinstance(node, _Text) else self._act(node, dot, variables) for node in nodes)

    def _act(self, node: _Action, dot: Any, variables: dict[str, Any]) -> str:
        if node.keyword is None:
            return _shown(self._value(node, node.code, dot, variables))
        if node.keyword == "range":
            return self._range(node, dot, variables)
        value = self._value(node, node.code, dot, variables)
        if not value:
            return self._run(node.otherwise, dot, variables)
        return self._run(node.body, value if node.keyword == "with" else dot, variables)

    def _range(self, node: _Action, dot: Any, variables: dict[str, Any]) -> str:
        names, code = [], node.code
        if ":=" in code:
            declared, code = code.split(":=", 1)
            names = [name.strip() for name in declared.split(",")]
        value = self._value(node, code, dot, variables)
        pairs = sorted(value.items()) if isinstance(value, Mapping) else list(enumerate(value or ()))
        if not pairs:
            return self._run(node.otherwise, dot, variables)
        texts = []
        for pair in pairs:
            given = pair if len(names) == 2 else pair[1:]
            texts.append(self._run(node.body, pair[1], variables | dict(zip(names, given, strict=len(names) > 0))))
        return "".join(texts)

    def _value(self, node: _Action, code: str, dot: Any, variables: dict[str, Any]) -> Any:
        return _Pipeline(self, node.where, code, dot, variables).value()


class _Pipeline:
    """Evaluates one pipeline: commands joined by `|`, each given the value before it as its last argument."""

    def __init__(self, templates: Templates, where: str, code: str, dot: Any, variables: Mapping[str, Any]) -> None:
        self._templates, self._where, self._dot, self._variables = templates, where, dot, variables
        self._tokens = _tokens(where, code)
        self._at = 0

    def value(self) -> Any:
        value = self._pipeline()
        if self._at != len(self._tokens):
            raise TemplateError(f"{self._where}: cannot read past {self._tokens[self._at][1]!r}")
        return value

    def _pipeline(self) -> Any:
        value = self._command([])
        while self._take("|"):
            value = self._command([value])
        return value

    def _command(self, piped: list[Any]) -> Any:
        kind, text = self._next()
        if kind != "word":
            if piped:
                raise TemplateError(f"{self._where}: only a function can follow `|`, got {text!r}")
            return self._operand(kind, text)
        arguments = []
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in ("|", ")"):
            arguments.append(self._operand(*self._next()))
        arguments += piped
        if text == "include":
            return self._templates.render(arguments[0], arguments[1])
        if text not in _FUNCTIONS:
            raise TemplateError(f"{self._where}: the function {text} is not of the subset: {', '.join(sorted(_FUNCTIONS))}")
        return _FUNCTIONS[text](*arguments)

    def _operand(self, kind: str, text: str) -> Any:
        if kind == "text":
            return text[1:-1].encode().decode("unicode_escape")
        if kind == "number":
            return int(text)
        if kind == "dot":
            return self._dot
        if kind == "variable":
            return self._variables[text]
        if kind == "field":
            return self._field(text)
        if text == "(":
            value = self._pipeline()
            if not self._take(")"):
                raise TemplateError(f"{self._where}: a parenthesis is not closed")
            return value
        raise TemplateError(f"{self._where}: cannot read {text!r} here")

    def _field(self, text: str) -> Any:
        root, *names = text.split(".")
        value = self._variables["$"] if root == "$" else self._dot
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                raise TemplateError(f"{self._where}: there is no value {text}")
            value = value[name]
        return value

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise TemplateError(f"{self._where}: breaks off")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, sign: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at][1] == sign
        self._at += found
        return found


def _pieces(name: str, source: str) -> _Nodes:
    """Texts and actions in order, white space trimmed where an action asks for it."""
    pieces: _Nodes = []
    at, trim = 0, False
    for found in _ACTION.finditer(source):
        text = source[at : found.start()]
        text = text.lstrip() if trim else text
        pieces.append(_Text(text.rstrip() if found["left"] else text))
        where = f"{name}, line {source.count(chr(10), 0, found.start()) + 1}: {{{{ {found['code']} }}}}"
        word, _, code = found["code"].partition(" ")
        if word in ("if", "with", "range", "define", "else", "end"):
            if word == "else" and code:
                raise TemplateError(f"{where}: `else if` is not of the subset")
            pieces.append(_Action(where, word, code))
        else:
            pieces.append(_Action(where, None, found["code"]))
        at, trim = found.end(), bool(found["right"])
    rest = source[at:]
    return [*pieces, _Text(rest.lstrip() if trim else rest)]


def _keyword(piece: "_Text | _Action") -> str | None:
    return piece.keyword if isinstance(piece, _Action) else None


def _tokens(where: str, code: str) -> list[tuple[str, str]]:
    tokens, at, code = [], 0, code.strip()
    while at < len(code):
        found = _TOKEN.match(code, at)
        if found is None:
            raise TemplateError(f"{where}: cannot read {code[at:]!r}")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
        at = found.end()
    return tokens


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 1_000_000:
        raise TemplateError(f"Helm would write {value} as a floating-point number: quote it in the values")
    return "" if value is None else str(value)


def _indent(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _quote(value: Any) -> str:
    return '"' + _shown(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "default": lambda fallback, value: value or fallback,
    "indent": _indent,
    "int": int,
    "nindent": lambda width, text: "\n" + _indent(width, text),
    "not": lambda value: not value,
    "printf": lambda pattern, *values: pattern % values,
    "quote": _quote,
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
    "until": lambda count: list(range(count)),
}
