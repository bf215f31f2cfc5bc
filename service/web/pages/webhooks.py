"""Webhooks and what was sent to them."""

from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from service.app_state import Config, QueueDep
from service.authentication import Db, Writer
from service.http.problems import BadRequest, Invalid
from service.idempotency.repeated_requests import AnswerBox, ClaimedKey
from service.web.forms import Form, read_as
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.webhooks import routes as webhooks
from service.webhooks.message_formats import Format
from service.webhooks.routes import Box, NewWebhook, Out, WebhookChange, WebhookResource
from service.webhooks.webhook_messages import WANTED

router = pages()


@dataclass(frozen=True)
class WebhookForm:
    """The form as it was sent; a refused one is shown again with what is wrong."""

    url: str
    format: str
    description: str
    events: list[str]

    def read(self) -> NewWebhook:
        """Raises Invalid."""
        description = self.description or None
        return read_as(NewWebhook, url=self.url, format=self.format, events=self.events, description=description)


_FORMATS: dict[Format, str] = {"standard": "Signed JSON", "slack": "Slack", "email": "E-mail"}
_EMPTY = WebhookForm("", "standard", "", [event for event in WANTED if event.startswith("task.")])


@router.get("/webhooks")
def list_webhooks(viewer: Looking, db: Db, request: Request) -> Response:
    return _page(request, viewer, db)


@router.post("/webhooks")
def create_webhook(
    viewer: Looking,
    writer: Writer,
    db: Db,
    box: Box,
    out: Out,
    form: Form,
    request: Request,
    claim: ClaimedKey,
    answers: AnswerBox,
    settings: Config,
) -> Response:
    draft = WebhookForm(form.one("url").strip(), form.one("format", "standard"), form.one("description"), form.all("event"))
    try:
        made = webhooks.create_webhook(draft.read(), writer, db, box, out, claim, answers, settings)
    except Invalid as problem:
        return _page(request, viewer, db, draft=draft, problem=problem)
    return _page(request, viewer, db, made=made)


@router.get("/webhooks/{webhook_id}")
def show_webhook(webhook_id: str, viewer: Looking, db: Db, request: Request, cursor: str | None = None) -> Response:
    reader = viewer.principal
    return render(
        request,
        "webhook.html",
        webhook=webhooks.get_webhook(webhook_id, reader, db),
        deliveries=webhooks.list_deliveries(webhook_id, reader, db, cursor, 50),
    )


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/replay")
def replay_delivery(webhook_id: str, delivery_id: str, writer: Writer, db: Db, queue: QueueDep, claim: ClaimedKey) -> Response:
    webhooks.replay_delivery(webhook_id, delivery_id, writer, db, queue, claim)
    return RedirectResponse(f"/webhooks/{webhook_id}", 303)


@router.post("/webhooks/{webhook_id}/{act}")
def change_webhook(
    webhook_id: str,
    act: str,
    writer: Writer,
    db: Db,
    queue: QueueDep,
    out: Out,
    claim: ClaimedKey,
    settings: Config,
) -> Response:
    match act:
        case "test":
            webhooks.test_webhook(webhook_id, writer, db, queue, claim)
        case "enable" | "disable":
            webhooks.change_webhook(webhook_id, WebhookChange(enabled=act == "enable"), writer, db, out, settings)
        case "delete":
            webhooks.delete_webhook(webhook_id, writer, db)
            return RedirectResponse("/webhooks", 303)
        case _:
            webhooks.get_webhook(webhook_id, writer, db)
            raise BadRequest("A webhook can be tested, enabled, disabled or deleted.")
    return RedirectResponse(f"/webhooks/{webhook_id}", 303)


def _page(
    request: Request,
    viewer: Looking,
    db: Db,
    *,
    made: WebhookResource | None = None,
    draft: WebhookForm = _EMPTY,
    problem: Invalid | None = None,
) -> Response:
    found = webhooks.list_webhooks(viewer.principal, db, None, 100).data
    shown = {"webhooks": found, "made": made, "events": WANTED, "formats": _FORMATS, "draft": draft, "problem": problem}
    answer = render(request, "webhooks.html", status=200 if problem is None else problem.status, **shown)
    if made is not None:
        answer.headers["Cache-Control"] = "no-store"  # it holds a secret
    return answer
