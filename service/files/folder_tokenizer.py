"""Loads a base model's tokenizer from its folder: tokenizer.json, its configuration, special tokens and chat template.

A worker reads the same folder with transformers. Knows no rows and loads no weights.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import DecodeStream

from contract.messages.placement_messages import TEMPLATES
from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import Messages, Offsets, TemplateError, TokenizerError, Tools
from service.files.chat_template import Template

_TOKENIZER, _CONFIG, _SPECIAL, _TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_WITH_TOOLS = "tool_use"
_TOOL_TEMPLATE = f"{TEMPLATES}/{_WITH_TOOLS}.jinja"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_KEPT = 4  # tokenizers in memory; a large one takes 100 MB


class TemplateKind(StrEnum):
    """What a base's chat template writes of a row with tools, as far as its text tells."""

    NONE = "none"  # the base has no template
    PLAIN = "plain"  # it never names them
    TOOLS = "tools"


def template_kind(content: Callable[[str], bytes | None]) -> TemplateKind | None:
    """Of a base whose files hold this `content` by path, None where there is no such file. None if they cannot be read."""
    try:
        sources = _templates_of(content, _object(content, _CONFIG))
    except ValueError:
        return None
    source = sources.get(_WITH_TOOLS, sources.get("default"))
    if source is None:
        return TemplateKind.NONE
    return TemplateKind.TOOLS if "tools" in source else TemplateKind.PLAIN


class FolderTokenizer:
    """Implements contract.rows.tokenizer.Tokenizer for a base model's folder. Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        """Raises TokenizerError."""
        try:
            said = _object(content := content_in(folder), _SPECIAL) | _object(content, _CONFIG)
            source = (folder / _TOKENIZER).read_text()
            self._sources = _templates_of(content, said)
        except (OSError, ValueError) as error:
            raise TokenizerError(f"the base model's tokenizer cannot be read: {error}") from None
        try:
            self._tokenizer = Tokenizer.from_str(source)
        except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
            raise TokenizerError(f"the base model's {_TOKENIZER} cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = bool(said.get("split_special_tokens", False))
        known = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        self._tokenizer.add_special_tokens([token for token in _special(said) if token.content not in known])
        self._words = {name: _text(said[name]) for name in _NAMED if said.get(name) is not None}
        self._begins: bool | None = said.get("add_bos_token")

    @property
    def end(self) -> int | None:
        return self._id("eos_token")

    @cached_property
    def lead(self) -> list[int]:
        begin = self._id("bos_token")
        if begin is None:
            return []
        begins = self._tokenizer.encode("").ids[:1] == [begin] if self._begins is None else self._begins
        return [begin] if begins else []

    def ids(self, texts: list[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        for text in texts:
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
            yield encoded.ids, encoded.offsets

    def chat(self, messages: Messages, add_generation_prompt: bool, now: datetime | None, tools: Tools | None = None) -> str:
        return self._template_for(tools).write(messages, add_generation_prompt, now, tools)

    def template_says(self, word: str, tools: Tools | None) -> bool:
        return word in self._template_for(tools).source

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token. A character that spans several tokens is the text of the last one."""
        stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self._tokenizer, id) for id in ids]
        if pieces and pieces[-1] is None:
            pieces[-1] = "\N{REPLACEMENT CHARACTER}"  # the row was cut within a character
        return [piece or "" for piece in pieces]

    def _template_for(self, tools: Tools | None) -> Template:
        return self._tool_template or self._template if tools is not None else self._template

    @cached_property
    def _template(self) -> Template:
        source = self._sources.get("default")
        if source is None:
            raise TemplateError.missing()
        return Template(source, self._words)

    @cached_property
    def _tool_template(self) -> Template | None:
        """Of the model's templates the one for conversations with tools, where it has one."""
        source = self._sources.get(_WITH_TOOLS)
        return None if source is None else Template(source, self._words)

    def _id(self, name: str) -> int | None:
        word = self._words.get(name)
        return None if word is None else self._tokenizer.token_to_id(word)


@dataclass(frozen=True)
class Loaded:
    """A base model's tokenizer, and the reader of rows with it."""

    tokenizer: FolderTokenizer
    reader: RowReader


class Tokenizers:
    """LRU cache of tokenizers, reloaded when their files change. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], Loaded] = OrderedDict()

    def of(self, source: str) -> Loaded:
        """The tokenizer and row reader of the model in this folder. Raises TokenizerError."""
        folder = Path(source)
        key = (source, *map(_mark, (folder / name for name in (_TOKENIZER, _CONFIG, _SPECIAL, _TEMPLATE, _TOOL_TEMPLATE))))
        with self._lock:  # loading a large one takes a second, and concurrent loads slow each other down
            found = self._known.get(key)
            if found is None:
                tokenizer = FolderTokenizer(folder)
                found = self._known[key] = Loaded(tokenizer, RowReader(tokenizer))
            self._known.move_to_end(key)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return found


def _mark(path: Path) -> tuple[int, int] | None:
    """The file's version: modification time in ns and size; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def content_in(folder: Path) -> Callable[[str], bytes | None]:
    """Gives the content of a folder's file; None where there is none."""
    return lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None


def _object(content: Callable[[str], bytes | None], path: str) -> dict[str, Any]:
    """A file's JSON object without null members; empty without a file. Raises ValueError."""
    if (text := content(path)) is None:
        return {}
    held = json.loads(text.decode())
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds no JSON object")
    return {name: value for name, value in held.items() if value is not None}


def _templates_of(content: Callable[[str], bytes | None], said: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by name: from files of their own, or from the configuration, as a text or in a list of named ones.
    Raises ValueError."""
    files = {"default": content(_TEMPLATE), _WITH_TOOLS: content(_TOOL_TEMPLATE)}
    if texts := {name: text.decode() for name, text in files.items() if text is not None}:
        return texts
    found = said.get("chat_template")
    if not isinstance(found, list):
        return {"default": found} if isinstance(found, str) else {}
    named = [(one.get("name"), one.get("template")) for one in found if isinstance(one, dict)]
    return {name: source for name, source in named if isinstance(name, str) and isinstance(source, str)}


def _special(said: Mapping[str, Any]) -> Iterator[AddedToken]:
    """The special tokens, which the tokenizer never splits."""
    more = said.get("extra_special_tokens") or said.get("additional_special_tokens") or []
    for token in (*(said.get(name) for name in _NAMED), *(more.values() if isinstance(more, dict) else more)):
        if isinstance(token, dict):
            how = {name: bool(token[name]) for name in ("lstrip", "rstrip", "normalized", "single_word") if name in token}
            yield AddedToken(_text(token), special=True, **how)
        elif isinstance(token, str):
            yield AddedToken(token, special=True, normalized=False)


def _text(token: object) -> str:
    """A token's text; the configuration holds it as text or as an object with `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)
