"""What rows need of a base model's tokenizer and chat template, and the errors that reading a row raises."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]]
Offsets = list[tuple[int, int]]

# errors that a wrong or hostile template raises in Jinja's sandbox, besides Jinja's own
TEMPLATE_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RowError(ValueError):
    """A row that cannot be turned into tokens. The message says why, without the row's number."""


class TokenizerError(RowError):
    """Rows cannot be tokenized with the base model's tokenizer."""


class TemplateError(RowError):
    """The base model's chat template cannot render the row."""

    @classmethod
    def missing(cls) -> "TemplateError":
        return cls("the base model has no chat template; use rows of prompt and completion")

    @classmethod
    def undated(cls) -> "TemplateError":
        return cls("the base model's chat template asks for the date, and nobody said when the task was created")

    @classmethod
    def of(cls, fault: Exception) -> "TemplateError":
        return cls(f"the base model's chat template fails: {type(fault).__name__}: {fault}")

    @classmethod
    def ignored(cls, field: str) -> "TemplateError":
        return cls(
            f"{field}: the base model's chat template does not write it, so it cannot be learned; take it out of the row, or "
            "take a base whose template writes it"
        )

    @classmethod
    def shortened(cls, field: str, of_preference: bool) -> "TemplateError":
        # a preference learns its answers alone, and has no weights
        spare = "" if of_preference else "learn the last turn alone (objective.turns: last), give this one weight 0, "
        return cls(
            f"{field}: the base model's chat template leaves out a part of it, as many do with thoughts, so it cannot be "
            f"learned; {spare}take the part out, or take a base whose template writes it"
        )


class Tokenizer(Protocol):
    """The base model's tokenizer and chat template."""

    @property
    def end(self) -> int | None:
        """The id of the end-of-sequence token."""

    @property
    def lead(self) -> list[int]:
        """Tokens that precede any text: the beginning-of-sequence token, or none."""

    def ids(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without special tokens around it."""

    def spans(self, texts: list[str]) -> Iterator[tuple[list[int], Offsets]]:
        """The tokens of each text and the characters [start, end) that each token covers, without special tokens around it."""

    def chat(self, messages: Messages, add_generation_prompt: bool, now: datetime | None, tools: Tools | None = None) -> str:
        """The conversation as the template renders it; its `strftime_now` returns `now`. With tools, by the template named
        `tool_use` where the model has one. Raises TemplateError, also if the template asks for a date and `now` is None."""

    def template_says(self, word: str, tools: Tools | None) -> bool:
        """Whether the source of the template that `chat` takes with these tools holds the word. Raises TemplateError without
        one."""
