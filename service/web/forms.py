"""A page's form as its fields, read before the handler runs, and as the API's models."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData

from service.http.problem_handlers import invalid_body

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Fields:
    """Text fields; files are left out."""

    data: FormData

    def one(self, name: str, default: str = "") -> str:
        value = self.data.get(name)
        return value.replace("\0", "") if isinstance(value, str) else default

    def all(self, name: str) -> list[str]:
        return [value.replace("\0", "") for value in self.data.getlist(name) if isinstance(value, str)]


async def _form(request: Request) -> Fields:
    return Fields(await request.form())


Form = Annotated[Fields, Depends(_form)]


def read_as(model: type[Model], **fields: Any) -> Model:
    """The form's fields as the API's model. Raises Invalid, which names the field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, model) from None
