"""The transfer port served by a thread of this process, beside storage or an API with the same settings."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from service.metrics.api_metrics import ApiMetrics
from service.settings import Settings
from service.storage.object_store import Caller
from service.storage.transfer_app import transfer_app
from tests.service.live_server import until

HERE = Caller("http", "127.0.0.1")


def by_a_port(port: int) -> dict[str, object]:
    """Settings of a transfer port that tenants use, too."""
    return {"transfer_port": port, "transfer_url": f"http://127.0.0.1:{port}"}


@contextmanager
def transferring(settings: Settings) -> Iterator[None]:
    assert settings.transfer_port is not None
    app, how = transfer_app(settings, ApiMetrics()), {"log_level": "warning", "timeout_keep_alive": 3600}
    server = uvicorn.Server(uvicorn.Config(app, port=settings.transfer_port, **how))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield
    finally:
        server.should_exit = True
        thread.join()
