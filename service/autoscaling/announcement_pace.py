"""When a state is announced: at first, once a change has settled, again at intervals, and after failures with growing pauses.

Values and moments in (seconds of one clock), yes or no out: knows no database and no HTTP.
"""

REPEAT_SECONDS = 600.0  # an unchanged state is told again, so that a receiver that lost it has it back
RETRIES = (5.0, 15.0, 60.0, 300.0)  # seconds after the first failures; the last one goes on


class AnnouncementPace:
    """`settle_seconds`: a change is told so long after it was first seen, if it has not gone away again by then."""

    def __init__(self, settle_seconds: float) -> None:
        self._settle = settle_seconds
        self._told: object = None  # what the receiver is known to have
        self._told_at = 0.0
        self._differs_since: float | None = None
        self._failures = 0
        self._not_before = 0.0

    def resting(self, now: float) -> bool:
        """Whether nothing may be told yet, whatever the state: the last try failed."""
        return bool(self._failures) and now < self._not_before

    def due(self, state: object, now: float) -> bool:
        """Whether this state is to be told now."""
        if self._told is None:
            return not self.resting(now)
        if state == self._told:
            self._differs_since = None
            return now - self._told_at >= REPEAT_SECONDS
        if self._differs_since is None:
            self._differs_since = now
        return now - self._differs_since >= self._settle

    def told(self, state: object, now: float) -> bool:
        """The receiver has taken it. Whether that ends a row of failures."""
        mended, self._failures = self._failures > 0, 0
        self._told, self._told_at, self._differs_since = state, now, None
        return mended

    def failed(self, now: float) -> bool:
        """The receiver may have it or not, so the state that there is then is told again. Whether it is the first failure."""
        self._told, self._differs_since = None, None
        self._not_before = now + RETRIES[min(self._failures, len(RETRIES) - 1)]
        self._failures += 1
        return self._failures == 1
