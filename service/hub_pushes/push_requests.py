"""Pushes as tenants ask for them: begun, found, listed, given up. Knows no HTTP and calls no hub."""

import re
from typing import Annotated, Self

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import Field, SecretStr, model_validator
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import HUB_SCHEME
from contract.strict import STORABLE, Strict
from service.adapters.actions import find_adapter
from service.adapters.adapter_readme import NAME
from service.adapters.additional_files import additional_files
from service.adapters.models import Adapter
from service.database.checked_json import required
from service.database.engine import new_id
from service.fleet.models import BaseModel
from service.http.problems import Conflict, check_credential, invalid_field
from service.hub_pushes.model_card import model_card
from service.hub_pushes.models import OPEN, HubPush
from service.merges.models import READY, MergedModel
from service.secret_box import SecretBox
from service.settings import Settings
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped
from service.usage.quotas import QuotaExceeded, lock_tenant_quota

MOST_OPEN = 8  # of a tenant
_PURPOSE = "hub push's token"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
_COMMIT = re.compile(r"[0-9a-f]{40}")

Repository = Annotated[str, Field(pattern=_NAME, max_length=193)]
Id = Annotated[str, Field(min_length=1, max_length=128), STORABLE]


class NotMergedYet(Conflict):
    """`merged_model_status` is its status."""

    code, title = "merged_model_not_ready", "The merged model is not ready"


class NewHubPush(Strict):
    adapter_id: Id | None = Field(default=None, description="An adapter: of a task, of a checkpoint, or uploaded")
    merged_model_id: Id | None = Field(default=None, description="Instead: a merged model that is ready")
    repository: Repository = Field(description="`organisation/name` on the hub; it is made if it is missing")
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=255)] = Field(
        default="main", description="A branch; it is made from main if it is missing"
    )
    private: bool = Field(
        default=True,
        description="Make the repository private. One that exists is left as it is, and refused if it is public",
    )
    message: Annotated[str, Field(min_length=1, max_length=200), STORABLE] | None = Field(
        default=None, description="Of the commit; left out, what is pushed"
    )
    base_model: Repository | None = Field(
        default=None,
        description=(
            "Of an adapter: its base's name on the hub, for the model card; left out, the repository that the base came from"
        ),
    )
    token: Annotated[SecretStr, Field(min_length=1, max_length=512)] = Field(
        description="Of the hub, with the right to write there. It is encrypted, and removed when the push ends"
    )

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.adapter_id is None) == (self.merged_model_id is None):
            raise ValueError("exactly one of 'adapter_id' and 'merged_model_id' says what is pushed")
        if self.base_model is not None and self.adapter_id is None:
            raise ValueError("'base_model' goes with 'adapter_id'; the README of a merged model names its base already")
        return self


def box_of(settings: Settings) -> SecretBox:
    """Encrypts tokens until their push has ended."""
    return SecretBox.of(settings, _PURPOSE)


def check(new: NewHubPush) -> None:
    """Raise Invalid for names that hubs refuse, or a token that no header takes."""
    for name, said in (("repository", new.repository), ("base_model", new.base_model)):
        try:
            validate_repo_id(said)
        except HFValidationError as error:
            raise invalid_field(name, "not_a_repository", f"is no name of a repository on the hub: {error}") from None
    if _COMMIT.fullmatch(new.revision) or new.revision.startswith("refs/") or ".." in new.revision:
        message = "must be a branch: a commit or a reference of another kind cannot be committed to"
        raise invalid_field("revision", "not_a_branch", message)
    check_credential("token", new.token.get_secret_value())


def card_of(session: Session, principal: Principal, new: NewHubPush) -> bytes | None:
    """The model card that goes with the files; None where these have a README. Raises NotFound, AdapterDeleted."""
    if new.adapter_id is None:
        return None
    adapter = find_adapter(session, principal, new.adapter_id)
    if any(file.path == NAME for file in adapter.folder.files):  # an early worker's own
        return None
    text = additional_files(session, principal, adapter).get(NAME)
    return model_card(adapter, new.base_model or _repository_of(session, adapter), text.decode() if text is not None else None)


def _files_of(session: Session, principal: Principal, new: NewHubPush) -> list[AdapterFile]:
    """The files of what is pushed, which is not deleted before this transaction ends. Raises NotFound, AdapterDeleted,
    NotMergedYet."""
    if new.adapter_id is not None:
        return find_adapter(session, principal, new.adapter_id, kept=True).folder.files
    merged = find(session, MergedModel, new.merged_model_id or "", principal, "merged model", lock=True)
    if merged.status != READY:
        raise NotMergedYet(f"{merged.id} is {merged.status}; push it once it is ready.", merged_model_status=merged.status)
    return required(merged.files, f"{merged.id}: ")


def begin(
    session: Session, principal: Principal, new: NewHubPush, card: AdapterFile | None, endpoint: str, box: SecretBox
) -> HubPush:
    """Queue a push to the hub at `endpoint`. card: the model card, stored. Raises NotFound, AdapterDeleted, NotMergedYet,
    QuotaExceeded."""
    files = [*_files_of(session, principal, new), *([card] if card is not None else [])]
    lock_tenant_quota(session, principal)
    open_ = pushes_of(principal).where(HubPush.status == OPEN)
    unended = session.scalar(select(func.count()).select_from(open_.subquery())) or 0
    if unended >= MOST_OPEN:
        raise QuotaExceeded.of("pushes_at_once", MOST_OPEN, unended, "wait until one has ended, or delete one")
    made = HubPush(
        id=new_id("push"),
        tenant_id=principal.tenant_id,
        adapter_id=new.adapter_id,
        merged_model_id=new.merged_model_id,
        endpoint=endpoint,
        repository=new.repository,
        revision=new.revision,
        private=new.private,
        message=new.message or f"Upload {new.adapter_id or new.merged_model_id}",
        files=files,
        bytes=sum(file.bytes for file in files),
        status=OPEN,
        sealed=box.seal(new.token.get_secret_value()),
    )
    session.add(made)
    session.flush()
    session.refresh(made)
    return made


def pushes_of(principal: Principal) -> Select[HubPush]:
    """The caller's."""
    return scoped(select(HubPush), HubPush, principal)


def find_push(session: Session, principal: Principal, push_id: str) -> HubPush:
    """Raises NotFound."""
    return find(session, HubPush, push_id, principal, "push to the hub")


def delete(session: Session, principal: Principal, push_id: str) -> None:
    """Forget a push, with its token. One that has not ended is given up: its process begins no commit from now on. Raises
    NotFound."""
    session.delete(find(session, HubPush, push_id, principal, "push to the hub", lock=True))


def _repository_of(session: Session, adapter: Adapter) -> str | None:
    """The repository of the hub that the adapter's base came from."""
    lineage = adapter.folder.lineage
    base = session.get(BaseModel, lineage.base_model)
    if base is None or base.revision != lineage.base_revision or not base.source.startswith(HUB_SCHEME):
        return None
    return base.source.removeprefix(HUB_SCHEME)
