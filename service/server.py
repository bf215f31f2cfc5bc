"""Runs the API under uvicorn, in one process or several, and beside them the transfer port. A stop signal ends long polls."""

import gc
import signal
import sys
from socket import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service import json_logging
from service.app import create_app
from service.app_state import State
from service.metrics.api_metrics import ApiMetrics
from service.metrics.multiprocess import MultiprocessMetrics
from service.prefork import Prefork
from service.settings import Settings
from service.storage.transfer_app import transfer_app

# The interpreter's thread switch interval: at Python's default 5 ms, an upload being checked doubled other requests' latency.
_SWITCH_SECONDS = 0.0005
_GRACE_SECONDS = 10  # for requests in flight at a stop signal


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    if settings.api_processes == 1 and settings.transfer_port is None:
        server = _server(settings, ApiMetrics())
        gc.freeze()  # the app lives as long as the process, so no collection needs to scan it
        _serve(server, _bind(server.config, settings))
        return
    gathered = MultiprocessMetrics()
    metrics = ApiMetrics(gathered.folder)
    server = _server(settings, metrics)
    roles: list[tuple[uvicorn.Server, list[socket]]] = [(server, _bind(server.config, settings))] * settings.api_processes
    if settings.transfer_port is not None:  # a member of its own: transfers take no time from the API's event loops
        transfers = uvicorn.Server(_config(transfer_app(settings, metrics), settings, settings.transfer_port))
        roles.append((transfers, [transfers.config.bind_socket()]))
    gc.freeze()
    crew = Prefork(len(roles), gathered.lost, gathered.remove)
    gathered.number = crew.lead()
    if gathered.number is not None:
        _serve(*roles[gathered.number])
    else:
        gathered.remove()


def _server(settings: Settings, metrics: ApiMetrics) -> "_Server":
    """A server ready to fork: all modules are loaded, no connection is open and no thread runs."""
    app = create_app(settings, metrics)
    state: State = app.state.motet

    async def measure() -> None:
        state.measure()

    config = _config(app, settings, settings.port)
    config.callback_notify, config.timeout_notify = measure, 1
    return _Server(config, state)


def _config(app: FastAPI, settings: Settings, port: int) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=port,
        access_log=False,  # service.http.middleware logs each request, with its id
        log_config=None,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies or ()],
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    config.load()
    return config


def _bind(config: uvicorn.Config, settings: Settings) -> list[socket]:
    """A bound socket for each port."""
    if settings.internal_port is None:
        return [config.bind_socket()]
    internal = uvicorn.Config(config.app, host=settings.host, port=settings.internal_port, log_config=None)
    return [config.bind_socket(), internal.bind_socket()]


def _serve(server: uvicorn.Server, listening: list[socket]) -> None:
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
