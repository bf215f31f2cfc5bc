"""Why a text has no score of its own."""


class MetricError(ValueError):
    """A metric that cannot be computed at all; the message names it."""


class Unscorable(Exception):
    """This text cannot be scored, for the named error."""


class TooCostly(Unscorable):
    """This text takes longer than a text may."""

    def __init__(self) -> None:
        super().__init__("too long a time")
