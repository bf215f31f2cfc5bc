"""When a lease ends on the database's clock. The worker counts the same seconds on its own clock, from before its request."""

from datetime import datetime, timedelta

from service.settings import Settings


def lease_until(now: datetime, settings: Settings) -> datetime:
    return now + timedelta(seconds=settings.lease_seconds)
