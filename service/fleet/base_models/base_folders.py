"""Tokenizer files of bases that nodes fetch as folders of this process, read from storage, for previews. Loads no tokenizer."""

import hashlib
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from service.fleet.base_models.base_files import SAFE
from service.fleet.base_models.model_catalog import files_of
from service.fleet.models import BaseModel
from service.http.problems import invalid_field
from service.storage.object_store import ObjectMissing, Storage


@dataclass(frozen=True)
class BaseTokenizer:
    """Where a base's tokenizer is: a folder, or objects of storage by path."""

    source: str
    objects: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, session: Session, base: BaseModel) -> "BaseTokenizer":
        files = files_of(session, base.name)
        return cls(base.source, tuple((file.path, file.sha256) for file in files if not file.path.endswith(SAFE)))


class BaseFolders:
    """Folders made on first use and gone with the process. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._process = 0

    def folder_of(self, base: BaseTokenizer, storage: Storage) -> str:
        """A folder with the tokenizer. Raises Invalid where storage lost a file, and as Storage does."""
        if not base.objects:
            return base.source
        with self._lock:
            if self._root is None or self._process != os.getpid():
                self._root, self._process = tempfile.TemporaryDirectory(prefix="motet-bases-"), os.getpid()
            folder = Path(self._root.name) / hashlib.sha256(repr(base.objects).encode()).hexdigest()
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=self._root.name) as new:
                    for path, sha256 in base.objects:
                        (Path(new) / path).parent.mkdir(exist_ok=True)
                        (Path(new) / path).write_bytes(_content(storage, path, sha256))
                    os.rename(new, folder)
                    os.mkdir(new)  # for the context manager to remove
        return str(folder)


def _content(storage: Storage, path: str, sha256: str) -> bytes:
    try:
        with storage.open(sha256) as content:
            return content.read()
    except ObjectMissing:
        message = f"the base's {path} is not in storage any more; an admin registers the base again with POST /v1/models"
        raise invalid_field("base_model", "tokenizer_unusable", message) from None
