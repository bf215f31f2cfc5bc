"""The variables of settings, for what is compared with them: the chart, docker-compose.yml."""

import re

from pydantic_settings import BaseSettings


def variables(settings: type[BaseSettings], required: bool = False) -> set[str]:
    """All of them, or those without a default."""
    fields = settings.model_fields.items()
    asked = [(name, field) for name, field in fields if field.is_required() or not required]
    return {str(field.validation_alias or f"MOTET_{name.upper()}") for name, field in asked}


def secret_variables(settings: type[BaseSettings]) -> set[str]:
    """Those whose values nobody may read."""
    return _of_type(settings, "SecretStr")


def text_variables(settings: type[BaseSettings]) -> set[str]:
    """Addresses, names, folders and secrets: all but numbers, switches and networks."""
    return _of_type(settings, r"\bstr\b|SecretStr|Path")


def _of_type(settings: type[BaseSettings], pattern: str) -> set[str]:
    fields = settings.model_fields.items()
    found = [(name, field) for name, field in fields if re.search(pattern, repr(field.annotation))]
    return {str(field.validation_alias or f"MOTET_{name.upper()}") for name, field in found}
