"""Base models and adapters as OpenAI's models. Times are Unix seconds."""

from typing import Literal

from pydantic import BaseModel

from service.fleet.models import BaseModel as Base
from service.openai.list_envelope import unix


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class PermissionObject(BaseModel):
    id: str
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    created_at: int
    project_id: str


class DeletedModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True


def model_object(model: Base) -> ModelObject:
    return ModelObject(id=model.name, created=unix(model.created_at), owned_by="motet")
