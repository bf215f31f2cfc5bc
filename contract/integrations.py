"""Integrations of a task: the tenant's tracking servers to which its curves are mirrored. Pure; calls nothing."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from contract.strict import STORABLE, Strict

MOST_INTEGRATIONS = 4
_OURS = ("mlflow.", "motet.")  # prefixes of tags that MLflow and the mirror set themselves

TrackerType = Literal["mlflow", "wandb"]
ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _free(key: str) -> str:
    if key.startswith(_OURS):
        raise ValueError(f"is '{key}': tags that begin with {' or '.join(_OURS)} are set by MLflow and by the mirror")
    return key


# what MLflow allows of a tag's name, but for slashes, some of which it refuses
TagKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-: ]{0,127}$"), AfterValidator(_free)]
TagValue = Annotated[str, Field(max_length=512), STORABLE]


class MlflowIntegration(Strict):
    """Mirrors the task to MLflow: a run for each job, below one for the task. The task never waits for it, and never fails."""

    type: Literal["mlflow"]
    server: ServerName = Field(description="Name of a tracking server of yours: POST /v1/tracking-servers")
    experiment: Annotated[str, Field(min_length=1, max_length=500), STORABLE] = Field(
        description="Its name; made where there is none"
    )
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=16)] = Field(default={}, description="Of every run")


# names as W&B's own SDK allows them: they stand in the paths of its addresses, so dots alone are none
PATH_PART = r"^[^/\\#?%:\x00-\x1f\x7f]{0,127}[^/\\#?%:.\x00-\x20\x7f][^/\\#?%:\x00-\x1f\x7f]{0,127}$"
_PathPart = Annotated[str, Field(min_length=1, max_length=128, pattern=PATH_PART)]
_WandbTag = Annotated[str, Field(min_length=1, max_length=64), STORABLE]


class WandbRun(Strict):
    """Where on Weights & Biases, as OpenAI's API has it."""

    project: _PathPart = Field(description="Made where there is none")
    name: Annotated[str, Field(min_length=1, max_length=128), STORABLE] | None = Field(
        default=None, description="Of the runs, with the job's index where a task has several; left out, the task's name or id"
    )
    entity: _PathPart | None = Field(default=None, description="A team or user; left out, the API key's default")
    tags: Annotated[list[_WandbTag], Field(max_length=16)] = Field(default=[], description="Of every run")


class WandbIntegration(Strict):
    """Mirrors the task to Weights & Biases: a run for each job, in a group of the task. The task never waits for it, and
    never fails."""

    type: Literal["wandb"]
    server: ServerName | None = Field(
        default=None, description="Name of a tracking server of yours; left out, your only one of type wandb"
    )
    wandb: WandbRun


Integration = Annotated[MlflowIntegration | WandbIntegration, Field(discriminator="type")]


def _possible(asked: Any) -> Any:
    """Refuse other services in words: a task that only seemed to be mirrored would be found out too late."""
    kinds = {str(one.get("type")) for one in asked if isinstance(one, dict)} if isinstance(asked, list) else set()
    if others := kinds - {"mlflow", "wandb"}:
        named = ", ".join(sorted(others))[:64] if others != {"None"} else "a service without a type"
        raise ValueError(
            f"runs are not sent to {named}; mirror them to Weights & Biases "
            '({"type": "wandb", "wandb": {"project": its name there}}) or MLflow '
            '({"type": "mlflow", "server": the name of a tracking server, "experiment": its name there}), or leave it out, and '
            "let a program of yours log what GET /v1/tasks/{task_id}/metrics, or metrics.csv of an OpenAI job, tells"
        )
    return asked


def _each_server_once(given: list[Integration]) -> list[Integration]:
    names = [one.server for one in given]
    if twice := sorted({name or "of type wandb (the one that is not named)" for name in names if names.count(name) > 1}):
        raise ValueError(f"names the tracking server {', '.join(twice)} twice; a task is mirrored to a server once")
    return given


Integrations = Annotated[
    list[Integration],
    Field(max_length=MOST_INTEGRATIONS),
    AfterValidator(_each_server_once),
    BeforeValidator(_possible),
]
