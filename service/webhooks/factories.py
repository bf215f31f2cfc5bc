"""Factories for the objects that webhooks need, from the settings."""

from service.database.engine import Database
from service.http.outbound import Outbound
from service.secret_box import SecretBox
from service.settings import Settings
from service.webhooks.courier import Courier
from service.webhooks.mail import Mailer

PURPOSE = "webhook secret"


def box_of(settings: Settings) -> SecretBox:
    """The SecretBox for webhooks' secrets."""
    return SecretBox.of(settings, PURPOSE)


def mailer_of(settings: Settings) -> Mailer | None:
    """The operator's SMTP server; None: there is none."""
    return None if settings.smtp_url is None else Mailer.of(settings.smtp_url.get_secret_value(), settings.smtp_from)


def courier_of(settings: Settings, db: Database) -> Courier:
    return Courier(db, outbound_of(settings), box_of(settings), mailer_of(settings), settings.public_url)


def outbound_of(settings: Settings) -> Outbound:
    return Outbound(settings.webhook_networks)
