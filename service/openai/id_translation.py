"""Where ids are translated at this face: those of paths on their way in, all others by types and by the routes' `Ids`."""

from collections.abc import MutableMapping
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from starlette.routing import Match

from service.http.openai_ids import OpenAiIds, own_id
from service.settings import Settings


def _own(id: str | None) -> str | None:
    return own_id(id) if id is not None else None


OwnId = AfterValidator(_own)  # of a field or parameter that names something


class OwnIdsRoute(APIRoute):
    """A route whose path's ids are our own for all that read them, the audit log too."""

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, MutableMapping[str, Any]]:
        match, found = super().matches(scope)
        if "path_params" in found:
            found["path_params"] = {name: own_id(said) for name, said in found["path_params"].items()}
        return match, found


def ids_of(request: Request) -> OpenAiIds:
    settings: Settings = request.app.state.motet.settings
    return OpenAiIds(settings.openai_id_prefixes)


async def _ids(request: Request) -> OpenAiIds:
    return ids_of(request)


Ids = Annotated[OpenAiIds, Depends(_ids)]
