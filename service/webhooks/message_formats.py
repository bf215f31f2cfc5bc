"""A stored message as what its receiver takes: Standard Webhooks' own JSON, Slack's `text`, or an e-mail. Pure."""

import json
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any, Literal

Format = Literal["standard", "slack", "email"]

_STATES = {
    "running": "is running",
    "paused": "is paused",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "was cancelled",
}
_MOST = 2000  # characters of an error that are told


def slack_body(payload: str, public_url: str | None) -> bytes:
    """What Slack's incoming webhooks take, and those of others that follow them."""
    heading, rest = _told(payload, public_url)
    text = "\n".join([f"*{_escaped(heading)}*", *map(_escaped, rest)])
    return json.dumps({"text": text}, separators=(",", ":")).encode()


def email(payload: str, public_url: str | None, sender: str, recipient: str) -> EmailMessage:
    heading, rest = _told(payload, public_url)
    made = EmailMessage()
    made["From"], made["To"] = sender, recipient
    made["Subject"] = "".join(one if one.isprintable() else " " for one in f"Motet: {heading}")[:200]
    made["Message-ID"] = f"<{json.loads(payload)['id']}@motet>"  # the same at every try
    made["Auto-Submitted"] = "auto-generated"
    made.set_content("\n".join([f"{heading}.", "", *rest]) + "\n")
    return made


def _told(payload: str, public_url: str | None) -> tuple[str, list[str]]:
    """A heading and lines: the task's name, its state, its winner or error, and where it is shown."""
    data: dict[str, Any] = json.loads(payload)["data"]
    if "task_id" not in data:
        return "a test message: this webhook works", []
    rest = []
    if data.get("winner_job_id"):
        rest.append(f"Winner: {_winner(data.get('winner') or {}) or data['winner_job_id']}")
    if data.get("error"):
        rest.append(f"Error: {data['error'][:_MOST]}")
    if public_url is not None:
        rest.append(f"{public_url.rstrip('/')}/tasks/{data['task_id']}")
    return f"{data.get('name') or data['task_id']} {_STATES.get(data['status'], data['status'])}", rest


def _winner(winner: Mapping[str, Any]) -> str | None:
    """As the task's page tells it; None: the message is of a version that knew its id alone."""
    if winner.get("label") is None:
        return None
    loss = "" if winner["val_loss"] is None else f", validation loss {winner['val_loss']:.4g}"
    return f"job {winner['index']} ({winner['label']}){loss}"


def _escaped(text: str) -> str:
    """Slack reads <, > and & as its own marks."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
