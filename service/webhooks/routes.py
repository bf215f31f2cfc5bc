"""Webhook routes."""

from datetime import datetime
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field, ValidationInfo, field_validator
from sqlalchemy import select

from contract.strict import STORABLE, LeftOut, Strict
from service.app_state import Config, QueueDep
from service.authentication import Db, Reader, Writer
from service.http.outbound import MAX_URL, Outbound
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import form_error
from service.http.request_bodies import NO_BODY
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal, Scope
from service.tenants.tenant_scope import scoped
from service.webhooks import actions
from service.webhooks.factories import box_of, outbound_of
from service.webhooks.message_formats import Format
from service.webhooks.models import Delivery, Webhook
from service.webhooks.webhook_messages import WANTED

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], responses=problems(401, 403))

Url = Annotated[str, Field(min_length=1, max_length=MAX_URL), STORABLE]
Description = Annotated[str, Field(max_length=128), STORABLE]
_NAMES = tuple(map(str, WANTED))  # of members a message would say what Python calls them
Wanted = Annotated[list[Literal[_NAMES]], Field(min_length=1, max_length=len(_NAMES))]  # type: ignore[valid-type]


def _formed(url: str, format: str) -> str:
    if (wrong := actions.form_mistake(url, format)) is not None:
        raise form_error(*wrong)
    return url


class NewWebhook(Strict):
    format: Format = Field(
        default="standard",
        description="standard: signed JSON. slack: `text` as Slack's incoming webhooks take it, unsigned. email: by the "
        "operator's SMTP server",
    )
    url: Url = Field(description="https, and a host whose every address is public; of e-mail, mailto: and the address")
    events: Wanted
    description: Description | None = None

    @field_validator("url")
    @classmethod
    def _of_its_format(cls, url: str, seen: ValidationInfo) -> str:
        """Here, so that it is told together with what else is wrong; which hosts may be called is up to the operator."""
        return _formed(url, seen.data["format"]) if "format" in seen.data else url


class WebhookChange(Strict):
    """What is left out stays as it is."""

    url: LeftOut[Url] = None
    events: LeftOut[Wanted] = None
    description: Description | None = None
    enabled: LeftOut[bool] = None

    @field_validator("url")
    @classmethod
    def _of_some_format(cls, url: str) -> str:
        return _formed(url, "email" if url.startswith(actions.MAILTO) else "standard")


class WebhookResource(BaseModel):
    object: Literal["webhook"] = "webhook"
    id: str
    url: str = Field(description="Slack's is a secret: a key that may only read is told its host alone")
    format: Format
    description: str | None
    events: list[str]
    enabled: bool
    disabled_because: str | None = Field(description="by_hand, or gone: the receiver answered 410")
    created_at: datetime
    secret: str | None = Field(default=None, description="Shown in the answer that makes it and never again")

    @classmethod
    def of(cls, webhook: Webhook, caller: Principal, secret: str | None = None) -> "WebhookResource":
        return cls(
            id=webhook.id,
            url=_shown_url(webhook, caller),
            format=cast(Format, webhook.format),
            description=webhook.description,
            events=webhook.events,
            enabled=webhook.disabled is None,
            disabled_because=webhook.disabled,
            created_at=webhook.created_at,
            secret=secret if webhook.format == "standard" else None,
        )


def _shown_url(webhook: Webhook, caller: Principal) -> str:
    """The URL; but who knows Slack's may post there, so those who may not change it see where it leads alone."""
    if webhook.format != "slack" or Scope.WRITE in caller.scopes:
        return webhook.url
    parts = urlsplit(webhook.url)
    return f"{parts.scheme}://{parts.hostname}/…"


class DeliveryResource(BaseModel):
    object: Literal["webhook_delivery"] = "webhook_delivery"
    id: str = Field(description="The message's webhook-id, the same at every try")
    webhook_id: str
    type: str
    status: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: datetime | None = Field(description="When it is tried again")
    last_status: int | None = Field(description="Of HTTP, at the last try")
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None

    @classmethod
    def of(cls, delivery: Delivery) -> "DeliveryResource":
        said = {name: getattr(delivery, name) for name in cls.model_fields.keys() - {"object", "next_at"}}
        return cls(**said, next_at=delivery.next_at if delivery.status == "pending" else None)


def _box(settings: Config) -> SecretBox:
    return box_of(settings)


def _outbound(settings: Config) -> Outbound:
    return outbound_of(settings)


Box = Annotated[SecretBox, Depends(_box)]
Out = Annotated[Outbound, Depends(_outbound)]


@router.post(
    "",
    status_code=201,
    operation_id="create_webhook",
    summary="Be told what happens to tasks",
    description=(
        "Messages are signed by Standard Webhooks under `secret`, which is shown in this answer alone. A message that is not "
        "answered with 2xx is tried again for three days; an answer of 410 disables the webhook."
    ),
    responses=problems(400, 409, 422),
)
def create_webhook(
    new: NewWebhook,
    writer: Writer,
    db: Db,
    box: Box,
    outbound: Out,
    claim: ClaimedKey,
    answers: AnswerBox,
    settings: Config,
) -> WebhookResource:
    actions.check_url(outbound, new.url, new.format, settings.smtp_url is not None)
    with db.begin() as session:
        webhook, secret = actions.create(session, box, writer, new.url, new.events, new.description, new.format)
        made = WebhookResource.of(webhook, writer, secret)
        claim.store_answer(session, 201, made, {}, box=answers)
    return made


@router.get("", operation_id="list_webhooks", summary="List webhooks, the newest first", responses=problems(422))
def list_webhooks(reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[WebhookResource]:
    with db.begin() as session:
        own = scoped(select(Webhook), Webhook, reader)
        return page(session, own, Webhook, cursor, limit, lambda rows: [WebhookResource.of(w, reader) for w in rows])


@router.get("/{webhook_id}", operation_id="get_webhook", summary="Get a webhook", responses=problems(404))
def get_webhook(webhook_id: str, reader: Reader, db: Db) -> WebhookResource:
    with db.begin() as session:
        return WebhookResource.of(actions.find_webhook(session, reader, webhook_id), reader)


@router.patch("/{webhook_id}", operation_id="change_webhook", summary="Change a webhook", responses=problems(400, 404, 422))
def change_webhook(
    webhook_id: str, change: WebhookChange, writer: Writer, db: Db, outbound: Out, settings: Config
) -> WebhookResource:
    with db.begin() as session:
        format = actions.find_webhook(session, writer, webhook_id).format
    if change.url is not None:
        actions.check_url(outbound, change.url, format, settings.smtp_url is not None)
    with db.begin() as session:
        webhook = actions.find_webhook(session, writer, webhook_id, lock=True)
        webhook.url = change.url or webhook.url
        webhook.events = change.events or webhook.events
        if "description" in change.model_fields_set:
            webhook.description = change.description
        if change.enabled is not None:
            actions.set_enabled(webhook, change.enabled)
        return WebhookResource.of(webhook, writer)


@router.delete(
    "/{webhook_id}",
    status_code=204,
    operation_id="delete_webhook",
    summary="Delete a webhook and its deliveries",
    responses=problems(404),
)
def delete_webhook(webhook_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        session.delete(actions.find_webhook(session, writer, webhook_id, lock=True))


@router.post(
    "/{webhook_id}/rotate",
    operation_id="rotate_webhook",
    summary="Give a webhook a new secret",
    description="For 24 hours messages are signed under both secrets. The new one is shown in this answer alone.",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def rotate_webhook(webhook_id: str, writer: Writer, db: Db, box: Box, claim: ClaimedKey, answers: AnswerBox) -> WebhookResource:
    with db.begin() as session:
        webhook = actions.find_webhook(session, writer, webhook_id, lock=True)
        changed = WebhookResource.of(webhook, writer, actions.rotate(session, box, webhook))
        claim.store_answer(session, 200, changed, {}, box=answers)
    return changed


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    operation_id="test_webhook",
    summary="Send a webhook a message of type webhook.test",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def test_webhook(webhook_id: str, writer: Writer, db: Db, queue: QueueDep, claim: ClaimedKey) -> DeliveryResource:
    with db.begin() as session:
        webhook = actions.find_webhook(session, writer, webhook_id, lock=True)
        sent = DeliveryResource.of(actions.test(session, queue, webhook))
        claim.store_answer(session, 202, sent, {})
    return sent


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="list_deliveries",
    summary="List what was sent to a webhook, the newest first",
    responses=problems(404, 422),
)
def list_deliveries(
    webhook_id: str, reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20
) -> Page[DeliveryResource]:
    with db.begin() as session:
        actions.find_webhook(session, reader, webhook_id)
        own = actions.deliveries_of(reader, webhook_id)
        return page(session, own, Delivery, cursor, limit, lambda rows: [DeliveryResource.of(d) for d in rows])


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/replay",
    status_code=202,
    operation_id="replay_delivery",
    summary="Send a message once more",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def replay_delivery(
    webhook_id: str, delivery_id: str, writer: Writer, db: Db, queue: QueueDep, claim: ClaimedKey
) -> DeliveryResource:
    with db.begin() as session:
        actions.find_webhook(session, writer, webhook_id)
        sent = DeliveryResource.of(actions.replay(session, queue, writer, webhook_id, delivery_id))
        claim.store_answer(session, 202, sent, {})
    return sent
