"""Runs the API under uvicorn, in one process or several, and answers long polls when it gets a stop signal."""

import gc
import signal
import sys
from socket import socket
from types import FrameType

import uvicorn

from service import json_logging
from service.app import create_app
from service.app_state import State
from service.metrics.api_metrics import ApiMetrics
from service.metrics.multiprocess import MultiprocessMetrics
from service.prefork import Prefork
from service.settings import Settings

# The interpreter's thread switch interval: at Python's default 5 ms, an upload being checked doubled other requests' latency.
_SWITCH_SECONDS = 0.0005
_GRACE_SECONDS = 10  # for requests in flight at a stop signal


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    if settings.api_processes == 1:
        server = _server(settings, ApiMetrics())
        _serve(server, _bind(server.config, settings))
        return
    gathered = MultiprocessMetrics()
    server = _server(settings, ApiMetrics(gathered.folder))
    listening = _bind(server.config, settings)
    crew = Prefork(settings.api_processes, gathered.lost, gathered.remove)
    gathered.number = crew.lead()
    if gathered.number is not None:
        _serve(server, listening)
    else:
        gathered.remove()


def _server(settings: Settings, metrics: ApiMetrics) -> "_Server":
    """A server ready to fork: all modules are loaded, no connection is open and no thread runs."""
    app = create_app(settings, metrics)
    state: State = app.state.motet

    async def measure() -> None:
        state.measure()

    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # service.http.middleware logs each request, with its id
        log_config=None,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies or ()],
        timeout_graceful_shutdown=_GRACE_SECONDS,
        callback_notify=measure,
        timeout_notify=1,
    )
    config.load()
    gc.freeze()  # the app lives as long as the process, so no collection needs to scan it
    return _Server(config, state)


def _bind(config: uvicorn.Config, settings: Settings) -> list[socket]:
    """A bound socket for each port."""
    if settings.internal_port is None:
        return [config.bind_socket()]
    internal = uvicorn.Config(config.app, host=settings.host, port=settings.internal_port, log_config=None)
    return [config.bind_socket(), internal.bind_socket()]


def _serve(server: "_Server", listening: list[socket]) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    json_logging.write_in_background()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)  # uvicorn raises the stop signal again once it has stopped
    server.run(listening)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


class _Server(uvicorn.Server):
    """Releases long polls at a stop signal, so that they answer at once."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started:
            self._state.change_listener.release()
        super().handle_exit(sig, frame)
