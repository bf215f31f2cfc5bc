"""A page's form as its fields, read before the handler runs."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import FormData


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
