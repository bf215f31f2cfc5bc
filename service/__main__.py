"""python -m service migrate | bootstrap | api | queue | reconcile | move-storage | backup | restore
                  | backups | verify-backup | reseal | openapi

Each command imports only its own modules: the solver alone takes a second and a hundred megabytes.
"""

import sys

from psycopg import OperationalError as ConnectionFailed
from sqlalchemy.exc import OperationalError

from contract.processes import entry_point
from service import json_logging
from service.schema import schema_upgrade
from service.settings import Settings, SettingsError, complain
from service.storage.object_store import StorageAway, StorageRefused
from service.thread_excepthook import end_process_with_its_threads

# each function takes the settings and returns when its work is done
_COMMANDS = {
    "migrate": "service.schema.schema_upgrade:migrate",
    "bootstrap": "service.bootstrap:run",
    "api": "service.server:run",
    "queue": "service.background.queue_worker:run_worker",
    "reconcile": "service.background.reconciler:run",
    "move-storage": "service.storage.storage_move:run",
    "backup": "service.backup.backup_creation:run",
    "restore": "service.backup.restore:run",
    "backups": "service.backup.verification:list_backups",
    "verify-backup": "service.backup.verification:run",
    "reseal": "service.background.resealing:run",
}
_NEED_TABLES = ("api", "queue", "reconcile")
_OPENAPI = "service.app:openapi_yaml"


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Errors that an operator can fix print one line, without a traceback."""
    if arguments == ["openapi"]:
        sys.stdout.write(entry_point.load(_OPENAPI)())
        return 0
    if len(arguments) != 1 or arguments[0] not in _COMMANDS:
        complain(f"usage: python -m service {' | '.join([*_COMMANDS, 'openapi'])}")
        return 2
    try:
        settings = Settings.load()
        json_logging.configure(settings.secrets)
        end_process_with_its_threads()
        _run(arguments[0], settings)
    except (SettingsError, schema_upgrade.SchemaBehind) as error:
        complain(str(error))
        return 1
    except (StorageAway, StorageRefused) as error:
        complain(f"storage: {error}")
        return 1
    except (OperationalError, ConnectionFailed) as error:
        cause = error.orig if isinstance(error, OperationalError) else error
        complain(f"cannot reach the database: {str(cause).strip().splitlines()[0]}")
        return 1
    return 0


def _run(command: str, settings: Settings) -> None:
    if command in _NEED_TABLES:
        schema_upgrade.require(settings)
    entry_point.load(_COMMANDS[command])(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
