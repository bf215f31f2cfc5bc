"""Token streams of a node's files, made once for each (file, tokenizer, template, objective, truncation) and cached.

Knows no split, no jobs, and not where rows are tokenised.
"""

import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from worker.data.disk_full import room_needed
from worker.data.node_cache import LOCK, FileCache, remove, size_of
from worker.data.token_stream import StreamDamaged, TokenStream, create
from worker.data.tokenising.file_tokeniser import Reading, Tick, tokenise

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2  # between looks at a stream that another process makes

Write = Callable[[Path, Reading, Path, Tick], None]  # writes a file's stream into a folder; see file_tokeniser.tokenise


def stream_of(
    file: FileCache, reading: Reading, fetch: Callable[[], Path], on_progress: Tick, write: Write = tokenise
) -> TokenStream:
    """The file's stream, opened; tokenised from the file that `fetch` brings where it is not cached. `on_progress` is called
    again and again, and may raise to end it. Raises DataError, DiskFull, and FileNotFoundError if the file is erased
    meanwhile."""
    with file.cache.relief():
        folder = file.streams / reading.key
    found = _open(folder)
    if found is not None:
        return found
    with _alone(folder, on_progress):  # so that executors that need the same rows tokenise them once
        found = _open(folder)
        if found is not None:
            return found
        began, path = time.monotonic(), fetch()
        with file.cache.relief(path), room_needed(folder):
            create(folder, lambda new: write(path, reading, new, on_progress))
        made = TokenStream.open(folder)
        log.info("%d rows of file %s are tokenised, in %.1f s", made.rows, file.sha256, time.monotonic() - began)
    with suppress(FileNotFoundError):  # one of them was removed meanwhile
        file.cache.added(size_of(path) + size_of(folder))
    return made


def loose_stream(path: Path, reading: Reading, on_progress: Tick) -> TokenStream:
    """A stream outside any cache: deleted from the disk when it is closed."""
    with TemporaryDirectory(prefix="motet-tokens-") as folder:
        create(Path(folder) / "stream", lambda new: tokenise(path, reading, new, on_progress))
        return TokenStream.open(Path(folder) / "stream")


def _open(folder: Path) -> TokenStream | None:
    """The cached stream if it is whole; removes a damaged one."""
    try:
        return TokenStream.open(folder)
    except FileNotFoundError:
        if folder.exists():
            remove(folder)
    except StreamDamaged as error:
        log.error("the token stream %s is damaged and will be made anew: %s", folder, error)
        remove(folder)
    return None


@contextmanager
def _alone(folder: Path, on_progress: Tick) -> Iterator[None]:
    """Hold the lock under which a stream is made; other processes wait for it."""
    with room_needed(folder):
        file = folder.with_suffix(LOCK).open("ab")
    with file as lock:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            on_progress()
            time.sleep(_LOOK_SECONDS)
        yield
