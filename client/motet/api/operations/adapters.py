"""Calls about adapters, their upload and download: each downloaded file is checked against its sha256, and the folder appears
complete or not at all; one that is there, and empty, is filled once all files are."""

import hashlib
import shutil
import tempfile
from pathlib import Path

import httpx

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE
from motet.api.errors import ApiError, DownloadDamaged, MotetError
from motet.api.resources import Adapter
from motet.api.steps import PAUSES, Listing, Operation, Sleep, at, chunk, entries, get, make, may_pass, one, opened, remove

README = "README.md"


def adapter(adapter_id: str) -> Operation[Adapter]:
    """The adapter's manifest."""
    return one(Adapter, get(at("/v1/adapters/{}", adapter_id)))


def upload(folder: str | Path, base_model: str, name: str | None = None) -> Operation[Adapter]:
    """Upload a folder as PEFT saves it, for a base that the service knows. Raises ApiError with each tensor that is wrong,
    MotetError if the folder cannot be read."""
    folder = Path(folder)
    said = {"base_model": base_model} | ({"name": name} if name is not None else {})
    texts = {part: (None, text.encode()) for part, text in said.items()}
    try:
        config = (folder / CONFIG_FILE).read_bytes()
        with (folder / WEIGHTS_FILE).open("rb") as weights:
            parts = texts | {"config": (None, config), "file": (WEIGHTS_FILE, weights)}
            return (yield from one(Adapter, make("/v1/adapters", files=parts)))
    except OSError as error:
        needs = f"an adapter's folder has {CONFIG_FILE} and {WEIGHTS_FILE}; weights in .bin files are never read"
        raise MotetError(f"cannot read {error.filename}: {error.strerror}; {needs}") from error


def adapters() -> Listing[Adapter]:
    """The tenant's adapters, trained and uploaded, newest first."""
    return entries(Adapter, "/v1/adapters", {"origin": "any"})


def delete_adapter(adapter_id: str) -> Operation[None]:
    """Delete the adapter for good. Raises ApiError (`adapter_in_use`) until its task, and tasks that start from it, have
    ended."""
    yield from remove(at("/v1/adapters/{}", adapter_id))


def download(adapter_id: str, folder: str | Path) -> Operation[Path]:
    """Write the adapter's PEFT files to `folder`, which must not exist yet or be empty. Returns the folder.

    Raises DownloadDamaged where a sha256 differs, MotetError where `folder` holds something else.
    """
    found = yield from adapter(adapter_id)
    return (yield from fetch_folder("adapters", found.id, found.files, Path(folder)))


def fetch_folder(kind: str, id: str, files: list[AdapterFile], folder: Path) -> Operation[Path]:
    """Write these files of what is called `id`, at /v1/<kind>, to `folder`. As `download`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if _holds(folder, files):
            return folder
        raise MotetError(f"{folder} exists and is not {id}; name another folder, or remove it")
    there = folder.is_dir()  # perhaps the working directory, a link or a mounted disk, which no rename replaces
    where = folder if there else folder.parent
    try:
        where.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=where))
    except OSError as error:
        raise MotetError(f"cannot write to {where}: {error.strerror}; name another folder") from error
    try:
        for file in files:
            yield from _fetch(kind, id, file, draft / file.path)
        if not any(file.path == README for file in files):
            yield from _fetch_readme(id, draft)
        if there:
            for path in list(draft.iterdir()):
                path.replace(folder / path.name)
        else:
            draft.chmod(0o755)
            draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetch(kind: str, id: str, file: AdapterFile, path: Path) -> Operation[None]:
    """Write a file. Where the connection breaks, go on from there, for as long as each few tries bring some of it."""
    where, pauses = at(f"/v1/{kind}/{{}}/files/{{}}", id, file.path, nested=True), iter(PAUSES)
    with path.open("wb") as out:
        digest = hashlib.sha256()
        while True:
            had = out.tell()
            try:
                answer = yield from opened(where, {"Range": f"bytes={had}-", "Accept-Encoding": "identity"} if had else None)
                if had and answer.status_code != httpx.codes.PARTIAL_CONTENT:  # it begins anew
                    out.seek(0)
                    out.truncate()
                    digest = hashlib.sha256()
                while block := (yield from chunk()):
                    digest.update(block)
                    out.write(block)
                break
            except MotetError as error:
                if out.tell() >= file.bytes:
                    break
                if out.tell() > had:
                    pauses = iter(PAUSES)
                pause = next(pauses, None) if may_pass(error) else None
                if pause is None:
                    raise
            yield Sleep(pause)
    if digest.hexdigest() != file.sha256:
        found = f"its sha256 is {digest.hexdigest()}, the manifest says {file.sha256}"
        raise DownloadDamaged(f"{file.path} of {id} arrived damaged: {found}; download it again")


def _fetch_readme(adapter_id: str, draft: Path) -> Operation[None]:
    """Fetch the README, which the service writes once the task has ended; before that there is none."""
    try:
        text = (yield from get(at("/v1/adapters/{}/files/{}", adapter_id, README))).content
    except ApiError as error:
        if error.status != 404:  # not written yet
            raise
    else:
        (draft / README).write_bytes(text)


def _holds(folder: Path, files: list[AdapterFile]) -> bool:
    """Whether the folder already holds exactly these files."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {README} != {file.path for file in files} - {README}:
        return False
    return all(_sha256(folder / file.path) == file.sha256 for file in files)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:  # shards of merged models are larger than memory
        return hashlib.file_digest(file, "sha256").hexdigest()
