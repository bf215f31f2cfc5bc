"""The API as a process: uvicorn, told to let go of waiting requests when it is told to stop."""

from types import FrameType

import uvicorn

from service.app import create_app
from service.settings import Settings
from service.state import State

_GRACE_SECONDS = 10  # for requests in hand when the process is told to stop


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # service.requests writes a line with the request's id
        log_config=None,
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
