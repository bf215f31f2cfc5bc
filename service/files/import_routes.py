"""POST /v1/files as JSON: a data set by the name of its source. An upload, as multipart/form-data, is routes.py's."""

from collections.abc import MutableMapping
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field, SecretStr
from starlette.routing import Match

from contract.strict import STORABLE, Strict
from service.app_state import Config, HubDep
from service.authentication import Db, Writer
from service.files.imports import actions, importer
from service.files.imports.resource import FoundFileResource, ImportedFileResource
from service.files.imports.s3_object import SCHEME, S3Object
from service.files.imports.sources import Asked, find
from service.files.multipart_upload import MAX_NAME, sane_name
from service.http.concurrency_limits import Importing
from service.http.outbound import Refused, origin
from service.http.problems import check_credential, invalid_field
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import ClaimedKey
from service.tenants.api_keys import Scope
from service.usage.quotas import admit_bytes


class JsonRoute(APIRoute):
    """Takes requests with a JSON body alone, and leaves others of the same path to the next route."""

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, MutableMapping[str, Any]]:
        match, child = super().matches(scope)
        said = Request(scope).headers.get("content-type", "").partition(";")[0].strip().lower()
        if match is Match.FULL and said != "application/json":
            return Match.NONE, {}
        return match, child


_OF_BUCKETS = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "version_id")

router = APIRouter(prefix="/v1/files", tags=["files"], responses=problems(401, 403), route_class=JsonRoute)


class NewFileImport(Strict):
    source: Annotated[str, Field(min_length=1, max_length=2048), STORABLE] = Field(
        description=(
            "`hf://datasets/organisation/name`, an `https://` URL of a public address, which may be presigned, or "
            "`s3://bucket/key`"
        )
    )
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=255)] = Field(
        default="main", description="Of the hub: a branch, a tag or a commit; it is resolved to a commit at once"
    )
    path: Annotated[str, Field(min_length=1, max_length=1024), STORABLE] | None = Field(
        default=None, description="Of the hub: the file in the repository; left out, its only *.jsonl or *.json file"
    )
    split: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)] | None = Field(
        default=None, description="Of the hub, instead of `path`: the one file of this split"
    )
    token: Annotated[SecretStr, Field(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="Of the hub, for gated and private data sets. It is encrypted, and removed when the import ends",
    )
    access_key_id: Annotated[str, Field(pattern=r"^[\x21-\x2e\x30-\x7e]+$", max_length=128)] | None = Field(
        default=None, description="Of an s3:// source; left out, it is read as anybody may"
    )
    secret_access_key: Annotated[SecretStr, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="With `access_key_id`. Both are encrypted, and removed when the import ends"
    )
    session_token: Annotated[SecretStr, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Of temporary keys of an s3:// source"
    )
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=64)] | None = Field(
        default=None, description="Of an s3:// source; left out, us-east-1"
    )
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$", max_length=1024)] | None = Field(
        default=None, description="Of an s3:// source: another S3-compatible server of a public address; left out, AWS"
    )
    version_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]+$", max_length=255)] | None = Field(
        default=None, description="Of an s3:// source: the object's version; left out, the newest, which is pinned by its ETag"
    )
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = Field(
        default=None, description="Left out, the file's own name"
    )
    dry_run: bool = Field(default=False, description="Tell all of it, and import nothing")

    def bucket(self) -> S3Object | None:
        """How an s3:// source is read; None of another. Raises Invalid."""
        said = {name: getattr(self, name) for name in _OF_BUCKETS if getattr(self, name) is not None}
        if not self.source.startswith(SCHEME):
            if said:
                raise invalid_field(next(iter(said)), "only_for_buckets", "goes with s3://bucket/key")
            return None
        if (self.access_key_id is None) != (self.secret_access_key is None):
            absent = "secret_access_key" if self.secret_access_key is None else "access_key_id"
            raise invalid_field(
                absent, "incomplete_keys", "access_key_id and secret_access_key go together: send both, or neither"
            )
        if self.session_token is not None and self.access_key_id is None:
            raise invalid_field("session_token", "incomplete_keys", "goes with access_key_id and secret_access_key")
        self._check_endpoint()
        plain = {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in said.items()}
        version = {"version": plain.pop("version_id")} if "version_id" in plain else {}
        return S3Object(bucket="", key="", **plain, **version)

    def check_credentials(self) -> None:
        """Raise Invalid for those that no header takes."""
        for name in ("token", "access_key_id", "secret_access_key", "session_token"):
            said = getattr(self, name)
            if said is not None:
                check_credential(name, said.get_secret_value() if isinstance(said, SecretStr) else said)

    def _check_endpoint(self) -> None:
        try:
            origin(self.endpoint or "")
        except Refused as error:
            raise invalid_field("endpoint", "not_a_url", str(error)) from None


@router.post("", status_code=201, include_in_schema=False)  # routes.py describes it with the upload
def import_file(
    new: NewFileImport,
    writer: Writer,
    db: Db,
    hub: HubDep,
    settings: Config,
    claim: ClaimedKey,
    response: Response,
    _: Importing,
) -> ImportedFileResource | FoundFileResource:
    with db.begin() as session:
        admit_bytes(session, writer, 1)
    new.check_credentials()
    own = hub.token if Scope.ADMIN in writer.scopes else ""
    token = new.token.get_secret_value() if new.token is not None else ""
    asked = Asked(new.source, new.revision, new.path, new.split, token, own, new.bucket())
    found = find(asked, hub, importer.outbound_of(settings, on_hub=False), settings.max_file_bytes)
    name = sane_name(new.name or found.name)
    if new.dry_run:
        response.status_code = 200
        return FoundFileResource.of(found, name)
    with db.begin() as session:
        resource = ImportedFileResource.of(actions.begin(session, writer, name, found, actions.box_of(settings)))
        claim.store_answer(session, 201, resource, {})
    return resource
