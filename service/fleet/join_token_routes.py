"""HTTP routes of join tokens, for admins: create one for a node name, list, revoke."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import select

from contract.messages.node_messages import JoinName
from contract.strict import Strict
from service.authentication import AdminDb
from service.fleet import join_tokens
from service.fleet.models import JoinToken
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import NotFound, shown
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey, AnswerBox

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=problems(401, 403, 422))

_HOUR, _YEAR = 3600, 365 * 24 * 3600


class NewJoinToken(Strict):
    node_name: JoinName = Field(
        description="The node that may join with it: its MOTET_NODE_NAME. With * at the end, all nodes whose names begin so"
    )
    expires_in_seconds: Annotated[int, Field(ge=60, le=_YEAR)] = Field(
        default=_HOUR, description="If it is not used before; one of many nodes works until then"
    )


class JoinTokenResource(BaseModel):
    """What lets one node join, once, or where `reusable` any number of nodes."""

    object: Literal["join_token"] = "join_token"
    id: str
    node_name: str
    reusable: bool = Field(description="Its name ends with *: all nodes whose names begin so may join with it until it expires")
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = Field(description="The last time")
    secret: str | None = Field(
        default=None, description="The node's MOTET_JOIN_TOKEN; shown in the answer that makes it and never again"
    )

    @classmethod
    def of(cls, token: JoinToken, secret: str | None = None) -> "JoinTokenResource":
        return cls(
            id=token.id,
            node_name=token.node_name,
            reusable=join_tokens.is_reusable(token.node_name),
            created_at=token.created_at,
            expires_at=token.expires_at,
            used_at=token.used_at,
            secret=secret,
        )


@router.post(
    "/join-tokens",
    status_code=201,
    operation_id="create_join_token",
    summary="Let a node join the fleet",
    description=(
        "The answer holds the token in `secret`, which works once and for a node of this name alone. A node that has joined "
        "registers again with a credential of its own; one that has lost it needs a new token. With a name such as `gpu-*` the "
        "token works until it expires or is revoked, for any number of nodes whose names begin so; it does not open the name "
        "of a node that is ready. Making one disturbs no node."
    ),
    responses=problems(409),
)
def create_join_token(new: NewJoinToken, db: AdminDb, claim: AdminClaimedKey, answers: AnswerBox) -> JoinTokenResource:
    with db.begin() as session:
        token, secret = join_tokens.mint(session, new.node_name, timedelta(seconds=new.expires_in_seconds))
        made = JoinTokenResource.of(token, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.get("/join-tokens", operation_id="list_join_tokens", summary="List join tokens, the newest first")
def list_join_tokens(db: AdminDb, cursor: Cursor = None, limit: Limit = 20) -> Page[JoinTokenResource]:
    with db.begin() as session:
        tokens = select(JoinToken)
        return page(session, tokens, JoinToken, cursor, limit, lambda rows: [JoinTokenResource.of(one) for one in rows])


@router.delete(
    "/join-tokens/{token_id}",
    operation_id="delete_join_token",
    summary="Revoke a join token",
    description="A node that has joined with it stays.",
    responses=problems(404),
)
def delete_join_token(token_id: str, db: AdminDb) -> JoinTokenResource:
    with db.begin() as session:
        token = session.get(JoinToken, token_id, with_for_update=True)
        if token is None:
            raise NotFound(f"There is no join token {shown(token_id)!r}.")
        session.delete(token)
        return JoinTokenResource.of(token)
