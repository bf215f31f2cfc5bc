"""The API as a process: uvicorn, told to let go of waiting requests when it is told to stop."""

import sys
from types import FrameType

import uvicorn

from service.app import create_app
from service.settings import Settings
from service.state import State

# A thread that judges an upload gives way this often. At Python's own 5 ms, other requests took twice as long meanwhile.
_SWITCH_SECONDS = 0.0005
_GRACE_SECONDS = 10  # for requests in hand when the process is told to stop


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # service.requests writes a line with the request's id
        log_config=None,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    _Server(config, app.state.motet).run()


class _Server(uvicorn.Server):
    """Lets requests that wait for a task answer as soon as the process is told to stop."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started:
            self._state.watcher.release()
        super().handle_exit(sig, frame)
