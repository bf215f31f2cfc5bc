"""python -m service migrate | bootstrap | api | queue | reconcile | openapi"""

import logging
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from psycopg import OperationalError as ConnectionFailed
from sqlalchemy.exc import OperationalError

from service import queue, reconcile, schema
from service.app import create_app, routes
from service.bootstrap import bootstrap
from service.db import Database
from service.openapi import as_yaml
from service.settings import Settings, SettingsError, complain
from service.state import State

_GRACE_SECONDS = 10  # for requests in hand when the API is told to stop


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _migrate(settings: Settings) -> None:
    schema.upgrade(settings.database_url)
    _say(f"the database is at revision {schema.head()}")


def _bootstrap(settings: Settings) -> None:
    for sentence in bootstrap(settings).said:
        _say(sentence)


def _api(settings: Settings) -> None:
    _require_schema(settings)
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


def _queue(settings: Settings) -> None:
    _require_schema(settings)
    queue.run_worker(settings)


def _reconcile(settings: Settings) -> None:
    _require_schema(settings)
    reconcile.run(settings)


def _require_schema(settings: Settings) -> None:
    db = Database(settings.database_url, pool_size=1)
    try:
        schema.check(db.engine)
    finally:
        db.engine.dispose()


_COMMANDS: dict[str, Callable[[Settings], None]] = {
    "migrate": _migrate,
    "bootstrap": _bootstrap,
    "api": _api,
    "queue": _queue,
    "reconcile": _reconcile,
}


def main(arguments: list[str]) -> int:
    """Run one command; the exit code. What an operator can mend is said in a line, without a traceback."""
    if arguments == ["openapi"]:
        sys.stdout.write(as_yaml(routes()))
        return 0
    if len(arguments) != 1 or arguments[0] not in _COMMANDS:
        complain(f"usage: python -m service {' | '.join([*_COMMANDS, 'openapi'])}")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        _COMMANDS[arguments[0]](Settings.load())
    except (SettingsError, schema.SchemaBehind) as error:
        complain(str(error))
        return 1
    except (OperationalError, ConnectionFailed) as error:
        cause = error.orig if isinstance(error, OperationalError) else error
        complain(f"cannot reach the database at MOTET_DATABASE_URL: {str(cause).strip().splitlines()[0]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
