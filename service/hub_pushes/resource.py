"""The API's representation of a push to the hub. The token is never shown."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field

from contract.messages.adapter_manifest import AdapterFile
from service.database.checked_json import UnreadValue, readable
from service.database.claimed_rows import last_error
from service.http.problems import FieldError
from service.hub_pushes.models import FAILED, OPEN, HubPush

Status = Literal["queued", "running", "succeeded", "failed"]


class HubPushError(BaseModel):
    """Why the last attempt failed. While `status` is `queued` or `running`, another one follows."""

    code: str
    detail: str


class HubPushResource(BaseModel):
    object: Literal["hub_push"] = "hub_push"
    id: str
    adapter_id: str | None
    merged_model_id: str | None
    repository: str
    revision: str = Field(description="The branch")
    private: bool = Field(description="As it was asked for")
    url: str = Field(description="Of the branch on the hub")
    message: str = Field(description="Of the commit")
    status: Status = Field(description="succeeded and failed are final")
    files: list[AdapterFile] = Field(description="With the model card, where it was made for the push")
    bytes: int = Field(description="Of all files")
    sent_bytes: int = Field(description="Of these, what the hub has: sent, or there before")
    commit: str | None = Field(description="The hub's commit that has all files")
    attempts: int = Field(description="Since the hub last got a file")
    next_attempt_at: datetime | None = Field(description="Not before then; null while it is pushed, and at its end")
    error: HubPushError | None
    created_at: datetime
    ended_at: datetime | None
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")

    @classmethod
    def of(cls, push: HubPush) -> Self:
        waits = push.status == OPEN and push.claim is None
        return cls(
            id=push.id,
            adapter_id=push.adapter_id,
            merged_model_id=push.merged_model_id,
            repository=push.repository,
            revision=push.revision,
            private=push.private,
            url=f"{push.endpoint}/{push.repository}/tree/{push.revision}",
            message=push.message,
            status=_status(push),
            files=readable(push.files) or [],
            bytes=push.bytes,
            sent_bytes=push.sent_bytes,
            commit=push.commit,
            attempts=push.attempts,
            next_attempt_at=push.next_at if waits else None,
            error=last_error(push, HubPushError),
            created_at=push.created_at,
            ended_at=push.ended_at,
            problems=[_problem(push.files.why)] if isinstance(push.files, UnreadValue) else None,
        )


def _status(push: HubPush) -> Status:
    if push.status == OPEN:
        return "queued" if push.claim is None else "running"
    return "failed" if push.status == FAILED else "succeeded"


def _problem(why: str) -> FieldError:
    return FieldError(field="files", code="unreadable", message=f"{why}. The push is shown without them; push it again.")
