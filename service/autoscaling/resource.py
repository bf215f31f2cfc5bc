"""The fleet's needs as JSON: what GET /v1/admin/autoscaling answers, and the `data` of the webhook's messages."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class WantedGpus(BaseModel):
    """What queued tasks of one width ask for."""

    type: Literal["any"] = Field(default="any", description="A spec names no type of GPU")
    width: int = Field(description="GPUs of a task, all on one node: as many as it asks for, or as its base needs there")
    tasks: int
    tasks_that_fit_no_node: int = Field(
        description="Of these, those that no node of the fleet has the GPUs or the memory for: they need another kind"
    )
    gpus: int = Field(description="That these tasks ask for")
    missing_gpus: int = Field(description="Of these, beyond what is free: add nodes for them")
    waiting_since: datetime = Field(description="Of the task that is queued longest")


class FreeGpus(BaseModel):
    """GPUs that a task could have now."""

    type: str
    gpus: int


class IdleNode(BaseModel):
    """A node that runs nothing. Drain it before it is taken away."""

    id: str
    name: str
    type: str
    gpus: int
    idle_since: datetime
    drained: bool = Field(description="It takes nothing any more, so it can be taken away now")


class AutoscalingState(BaseModel):
    """GPUs that the queue asks for, and nodes that nobody uses, as of one moment."""

    object: Literal["autoscaling"] = "autoscaling"
    at: datetime
    wanted: list[WantedGpus] = Field(
        description="By width; without tasks that no further node would start (a quota, `not_before`, a newer version)"
    )
    free: list[FreeGpus] = Field(description="By type, of nodes that take tasks")
    idle_nodes: list[IdleNode] = Field(description="Those idle longest first")
