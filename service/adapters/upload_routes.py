"""POST /v1/adapters: a PEFT folder that a tenant brings, checked against its base before anything of it is kept."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from contract.job_config import MAX_RANK
from contract.messages.adapter_manifest import AdapterBase, AdapterFile, UploadedManifest
from contract.messages.peft_settings import CONFIG_FILE, MAX_LORA_ALPHA, WEIGHTS_FILE, NotPlainLora, PeftSettings
from service.adapters import actions
from service.adapters.adapter_intake import AdapterIntake, AdapterTooLarge, check_tensors
from service.adapters.matrix_shapes import MatrixShapes
from service.adapters.resource import AdapterResource
from service.app_state import BaseFoldersDep, Store
from service.authentication import Db, Writer
from service.files.multipart_upload import Kind, Upload, receiving
from service.fleet.base_models.base_folders import BaseTokenizer
from service.http.problems import invalid_field
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import IdempotencyKey as IdempotencyKey
from service.idempotency.repeated_requests import claim_key_of_body
from service.storage.object_store import Storage, Stored
from service.tasks.submission import spec_checks

router = APIRouter(prefix="/v1", tags=["adapters"], responses=problems(401, 403))

MAX_NAME = 128
_MAX_CONFIG = 2**16  # characters
_KIND = Kind(
    lambda settings: settings.max_adapter_bytes,
    AdapterTooLarge.bytes,
    lambda incoming, settings: AdapterIntake(incoming, settings.max_adapter_bytes),
    {"config": _MAX_CONFIG, "base_model": MAX_NAME, "name": MAX_NAME},
    names_file=False,
)
Received = Annotated[Upload[AdapterIntake], Depends(receiving(_KIND))]
_PARTS = {
    "type": "object",
    "required": ["file", "config", "base_model"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": WEIGHTS_FILE},
        "config": {"type": "string", "description": f"The content of {CONFIG_FILE}, at most {_MAX_CONFIG} characters"},
        "base_model": {"type": "string", "maxLength": MAX_NAME, "description": "One of `GET /v1/models`, whose shape it fits"},
        "name": {"type": "string", "maxLength": MAX_NAME, "description": "For people, and in the name that it is asked by"},
    },
}


@router.post(
    "/adapters",
    status_code=201,
    operation_id="create_adapter",
    summary="Upload a PEFT adapter",
    description=(
        "A LoRA adapter as PEFT saves it, as multipart/form-data. Tasks may start from it (`warm_start`), and it can be asked. "
        "Safetensors alone; plain LoRA of one rank (no DoRA, biases, modules saved whole); every matrix of the modules that it "
        "has, in all layers, in float32, float16 or bfloat16, and finite. A refusal names the first 100 tensors that are wrong."
    ),
    responses=problems(400, 409, 413, 422, 503),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _PARTS}}}},
)
def create_adapter(
    writer: Writer,
    upload: Received,
    db: Db,
    storage: Store,
    folders: BaseFoldersDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> AdapterResource:
    config, wanted = (_required(upload, part) for part in ("config", "base_model"))
    name = _name(upload.texts.get("name"))
    settings = _settings(config)
    with db.begin() as session:
        base = spec_checks.for_adapter(session, wanted)
        held, revision = BaseTokenizer.of(session, base), base.revision
    shapes = _shapes(Path(folders.folder_of(held, storage)))
    modules = check_tensors(upload.intake.tensors(), settings, shapes, wanted)
    settings = settings.model_copy(update={"target_modules": modules})
    stored = {CONFIG_FILE: _store(storage, config.encode()), WEIGHTS_FILE: upload.intake.finish()}
    files = [AdapterFile(path=path, sha256=one.sha256, bytes=one.bytes) for path, one in stored.items()]
    manifest = UploadedManifest(files=files, lineage=AdapterBase(base_model=wanted, base_revision=revision), settings=settings)
    said = (*(file.sha256 for file in files), wanted, revision, name or "")
    with claim_key_of_body(request, writer, idempotency_key, *said) as claim, db.begin() as session:
        resource = AdapterResource.of(actions.keep_uploaded(session, writer, name, manifest))
        claim.store_answer(session, 201, resource, {})
    return resource


def _required(upload: Upload[AdapterIntake], part: str) -> str:
    if not (found := upload.texts.get(part, "")):
        what = {"config": f"the content of {CONFIG_FILE}", "base_model": "the base that the adapter is for"}[part]
        raise invalid_field(part, "missing", f"is required: {what}, as a part called {part}")
    return found


def _name(said: str | None) -> str | None:
    if said is not None and (not 1 <= len(said) <= MAX_NAME or not said.isprintable()):
        raise invalid_field("name", "bad_name", f"must have 1 to {MAX_NAME} printable characters")
    return said


def _settings(config: str) -> PeftSettings:
    try:
        settings = PeftSettings.read(config.encode())
    except NotPlainLora as error:
        raise invalid_field("config", "not_plain_lora", str(error)) from None
    if settings.rank > MAX_RANK or settings.alpha > MAX_LORA_ALPHA:  # which exports of joined matrices may have
        message = f"has rank {settings.rank} and alpha {settings.alpha:g}; uploaded adapters have at most {MAX_RANK} and "
        raise invalid_field("config", "not_plain_lora", f"{message}{MAX_LORA_ALPHA:g}")
    return settings


def _shapes(folder: Path) -> MatrixShapes:
    """Raises Invalid where this process cannot read the base's configuration."""
    try:
        content = (folder / "config.json").read_bytes()
    except OSError as error:
        message = f"its config.json cannot be read here ({error.strerror}), so no shape can be checked; tell an admin"
        raise invalid_field("base_model", "base_unreadable", message) from None
    return MatrixShapes.read(content, "base_model")


def _store(storage: Storage, content: bytes) -> Stored:
    incoming = storage.receive()
    try:
        incoming.write(content)
        return incoming.commit()
    finally:
        incoming.abandon()
