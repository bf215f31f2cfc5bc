"""Reads a model's repository on the hub: pins it by commit, checks that it can be trained on, and lists the files that nodes
fetch. Downloads small files and the headers of safetensors files, no weights.

Pickled weights are refused: loading them runs code.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from huggingface_hub import ModelInfo
from huggingface_hub.hf_api import RepoSibling

from contract.messages.placement_messages import HUB_SCHEME, SMALL_FILES, TEMPLATE_PATH
from contract.model_revision import combined
from service.files.folder_tokenizer import template_kind
from service.fleet.base_models.base_files import INDEX, NEEDED, SAFE, SMALL_BYTES, weight_paths
from service.fleet.base_models.model_config import ModelConfig, header_length, parameters_in, storable
from service.fleet.models import BaseModel, BaseModelFile
from service.http.problems import Invalid, invalid_field, shown
from service.hub.hub_client import Hub, HubRepository, check_revision

_SOURCE = re.compile(r"hf://([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FIRST_BYTES = 128 * 2**10  # of a safetensors file, which mostly hold its header
_AT_ONCE = 8


@dataclass(frozen=True)
class HubModel:
    """`row` is unsaved. `contents`: the files that are no weights, by path."""

    row: BaseModel
    files: list[BaseModelFile]
    contents: Mapping[str, bytes] = field(repr=False)

    @property
    def bytes(self) -> int:
        """What a node downloads."""
        return sum(file.bytes for file in self.files)


def repository_of(source: str) -> str:
    """`organisation/name` of a source. Raises Invalid."""
    found = _SOURCE.fullmatch(source)
    if found is None or ".." in source or "--" in source:
        raise _wrong("not_a_repository", f"must be of the form hf://organisation/name, not {shown(source)!r}")
    return found[1]


def read_repository(hub: Hub, name: str, source: str, revision: str) -> HubModel:
    """The model at this revision, resolved to a commit at once. Raises Invalid if it is not usable, and as Hub does."""
    repository = repository_of(source)
    check_revision(revision)
    reader = hub.repository(repository)
    info = reader.info(revision)
    commit = info.sha or ""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise _wrong("not_a_repository", f"the hub names no commit of {repository} at {shown(revision)!r}")
    listed = {one.rfilename: one for one in info.siblings or ()}
    held = {path: one for path, one in listed.items() if "/" not in path or re.fullmatch(TEMPLATE_PATH, path)}
    _check_complete(repository, held)
    small = [path for path in held if path in (*SMALL_FILES, INDEX) or re.fullmatch(TEMPLATE_PATH, path)]
    contents = {path: _content(reader, commit, held[path]) for path in small}
    config = ModelConfig.read(contents["config.json"], "source")
    weights = [held[path] for path in weight_paths(repository, held, contents.get(INDEX))]
    parameters = _parameters(reader, commit, weights)
    files = [
        *(BaseModelFile(base_model=name, path=path, sha256=_sha256(each), bytes=len(each)) for path, each in contents.items()),
        *(
            BaseModelFile(base_model=name, path=one.rfilename, sha256=_weights_sha256(repository, one), bytes=one.size)
            for one in weights
        ),
    ]
    row = BaseModel(
        name=name,
        source=HUB_SCHEME + repository,
        revision=combined((one.rfilename, _weights_sha256(repository, one)) for one in weights),
        architecture=config.architecture,
        model_type=config.model_type,
        parameters=parameters,
        max_position=config.max_position,
        enabled=True,
        commit=commit,
        license=_license(info),
        gated=bool(info.gated),
        template_kind=template_kind(contents.get),
    )
    return HubModel(row, files, contents)


def _check_complete(repository: str, held: Mapping[str, RepoSibling]) -> None:
    if not any(path.endswith(SAFE) for path in held):
        pickled = sorted(path for path in held if path.endswith(_PICKLES))
        if pickled:
            raise _wrong(
                "pickled_weights",
                f"{repository} holds its weights as pickle ({shown(pickled[0])}), which runs code when it is loaded; name a "
                "repository or a revision with *.safetensors, or convert it",
            )
        raise _wrong("no_weights", f"{repository} holds no *.safetensors files, the only format that is loaded")
    missing = [needed for needed in NEEDED if needed not in held]
    if missing:
        raise _wrong("incomplete", f"{repository} holds no {' and no '.join(missing)}")


def _content(reader: HubRepository, commit: str, one: RepoSibling) -> bytes:
    """A small file, verified by the sha256 or the git id that the hub tells."""
    if one.size is None or one.size > SMALL_BYTES:
        raise _wrong("damaged", f"{reader.name}: {one.rfilename} has {one.size} bytes, the limit is {SMALL_BYTES}")
    content = reader.content(commit, one.rfilename, SMALL_BYTES + 1) if one.size else b""
    if one.lfs is not None:
        same = _sha256(content) == one.lfs.sha256
    else:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        same = one.blob_id is None or blob.hexdigest() == one.blob_id
    if not same or len(content) != one.size:
        raise _wrong("wrong_bytes", f"{reader.name}: {one.rfilename} has not the bytes that the hub announces; try again")
    return content


def _parameters(reader: HubRepository, commit: str, weights: Sequence[RepoSibling]) -> int:
    """The number of parameters, from the headers of the safetensors files."""

    def count(one: RepoSibling) -> int:
        first = reader.content(commit, one.rfilename, _FIRST_BYTES)
        length = header_length(first, one.rfilename)
        if length + 8 > len(first):
            first = reader.content(commit, one.rfilename, length + 8)
        return parameters_in(first[8 : length + 8])

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return sum(pool.map(count, weights))
    except ValueError as error:
        raise _wrong("damaged", f"{reader.name} holds a damaged file: {error}") from None


def _weights_sha256(repository: str, one: RepoSibling) -> str:
    if one.lfs is None or one.size is None or not re.fullmatch(r"[0-9a-f]{64}", one.lfs.sha256):
        raise _wrong("not_pinned", f"{repository}: the hub tells no sha256 of {one.rfilename}, which is not stored with LFS")
    return one.lfs.sha256


def _license(info: ModelInfo) -> str | None:
    """As the model card or a tag says."""
    said = info.card_data.get("license") if info.card_data is not None else None
    tagged = next((tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")), None)
    found = said if isinstance(said, str) else tagged
    return None if found is None else storable(found, 128)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("source", code, message)
