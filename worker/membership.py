"""What belongs to one registration of this node: its heartbeat, its hints, its desired state. Gone when the node joins anew."""

from collections.abc import Callable
from typing import Any

from contract.wire import NodeWelcome
from worker.child import Child
from worker.desired import DesiredStates
from worker.hints import Hints
from worker.link import NodeLink
from worker.pipe import HEARTBEAT_NEWS, Beating, Identity, Pulses
from worker.settings import Settings


class Membership:
    """`tell` is called, from several threads, with every event of this registration."""

    def __init__(
        self, settings: Settings, link: NodeLink, welcome: NodeWelcome, boot_id: str, tell: Callable[[Any], None]
    ) -> None:
        self.welcome = welcome
        self._tell = tell
        self._identity = Identity(
            api_url=settings.api_url,
            node_id=welcome.node_id,
            credential=welcome.credential,
            boot_id=boot_id,
            seconds=welcome.heartbeat_seconds,
        )
        self.desired = DesiredStates(link, welcome, tell)
        self._hints = Hints(settings.redis_url, welcome.stream, self.desired.want) if settings.redis_url else None
        self.start_heart()

    def start_heart(self) -> None:
        """Start the heartbeat's process."""
        self.heart = Child("worker.heartbeat", HEARTBEAT_NEWS, self._tell)
        self.heart.send(self._identity)

    def pulse(self, placements: list[Beating], now: bool) -> None:
        """Tell the heartbeat what there is; with `now` it beats at once."""
        self.heart.send(Pulses(placements=placements, now=now))

    def close(self, seconds: float = 0.0) -> None:
        """End it all. What was lost is still told, if that takes no longer than `seconds`."""
        if self._hints is not None:
            self._hints.close()
        self.desired.close(seconds)
        self.heart.kill()
