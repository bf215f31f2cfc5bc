"""The API on a real socket, served by a thread of this process, for what the in-process client does not show."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from service.app import create_app
from service.app_state import State
from service.settings import Settings

PATIENCE = 120.0  # seconds after which a test gives up, here and as the limit of a request
BEFORE_A_POLL_ENDS = 55.0  # a request's limit where its answer has to come before the 60 s are over that it asks to wait


class Server(uvicorn.Server):
    """An app in a thread of this process, on a free port (0) or this one."""

    def __init__(self, settings: Settings, port: int = 0) -> None:
        app = create_app(settings)
        # a connection that stood idle is not closed just as the next call is sent
        super().__init__(uvicorn.Config(app, port=port, log_level="warning", timeout_keep_alive=3600))
        self.state: State = app.state.motet

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@contextmanager
def live(settings: Settings, port: int = 0) -> Iterator[Server]:
    """A server that answers and listens; on the way out it stops as on SIGTERM."""
    made = Server(settings, port)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        until(lambda: made.started or not thread.is_alive())
        assert made.state.change_listener.listening.wait(PATIENCE)
        yield made
    finally:
        made.state.change_listener.release()
        made.should_exit = True
        thread.join()


def until(condition: Callable[[], object]) -> None:
    """Wait for something another thread does and tells nobody."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")
