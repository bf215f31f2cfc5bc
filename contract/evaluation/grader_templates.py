"""Templates of OpenAI's graders: texts with the placeholders {{sample.output_text}}, which is the generated text, and
{{item.completion}}, the row's own answer. Pure; knows no metric."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from contract.strict import STORABLE

OUTPUT = "sample.output_text"
ANSWER = "item.completion"
_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_KNOWN = f"{{{{{OUTPUT}}}}}, the generated text, and {{{{{ANSWER}}}}}, the row's own answer in any format of rows"


def placeholders(template: str) -> set[str]:
    """The names in it."""
    return {name.strip() for name in _PLACEHOLDER.findall(template)}


def rendered(template: str, text: str, reference: str) -> str:
    """The template with its placeholders replaced; braces in what replaces them stay as they are."""
    values = {OUTPUT: text, ANSWER: reference}
    return _PLACEHOLDER.sub(lambda found: values[found[1].strip()], template)


def _known(template: str) -> str:
    unknown = sorted(placeholders(template) - {OUTPUT, ANSWER})
    if unknown:
        raise ValueError(
            f"names {{{{{unknown[0]}}}}}, which is not known here; there are {_KNOWN}. Rows have no other columns: let the "
            "row's answer be what to compare with, or write what is the same for all rows into the template"
        )
    if "{{" in _PLACEHOLDER.sub("", template):
        raise ValueError(f"opens a placeholder with '{{{{' that is not closed; there are {_KNOWN}")
    return template


Template = Annotated[str, Field(min_length=1, max_length=1000), STORABLE, AfterValidator(_known)]
