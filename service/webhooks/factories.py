"""The parts that webhooks need, as the settings want them."""

from service.http.outbound import Outbound
from service.secret_box import SecretBox
from service.settings import Settings

PURPOSE = "webhook secret"


def box_of(settings: Settings) -> SecretBox:
    """What seals and opens webhooks' secrets."""
    earlier = [key.get_secret_value() for key in settings.secret_keys_before]
    return SecretBox(settings.secret_key.get_secret_value(), PURPOSE, earlier)


def outbound_of(settings: Settings) -> Outbound:
    return Outbound(settings.webhook_networks)
