"""Factories for the objects that webhooks need, from the settings."""

from service.http.outbound import Outbound
from service.secret_box import SecretBox
from service.settings import Settings

PURPOSE = "webhook secret"


def box_of(settings: Settings) -> SecretBox:
    """The SecretBox for webhooks' secrets."""
    earlier = [key.get_secret_value() for key in settings.secret_keys_before]
    return SecretBox(settings.secret_key.get_secret_value(), PURPOSE, earlier)


def outbound_of(settings: Settings) -> Outbound:
    return Outbound(settings.webhook_networks)
