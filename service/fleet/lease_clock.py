"""How long a lease lasts on the database's clock. The worker counts the same seconds on its own, from before it asked."""

from datetime import datetime, timedelta

from service.settings import Settings


def lease_until(now: datetime, settings: Settings) -> datetime:
    return now + timedelta(seconds=settings.lease_seconds)
