"""Refuses a body on routes that take none, where it would be ignored without a word. Knows no route."""

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from service.http.problems import FieldError, Invalid


async def _refuse_body(request: Request) -> None:
    body = await request.body()
    if b"".join(body.split()) in (b"", b"{}", b"null"):
        return
    route: APIRoute = request.scope["route"]
    named = ", ".join(field.alias for field in route.dependant.query_params)
    hint = f"; what it takes are parameters of the query: {named}" if named else ""
    raise Invalid([FieldError(code="body_not_taken", message=f"this route takes no body{hint}")])


NO_BODY = Depends(_refuse_body)  # an empty object counts as none: some clients always send one
