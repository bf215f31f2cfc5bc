"""Integrations of a task: the tenant's tracking servers to which its curves are mirrored. Pure; calls nothing."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from contract.strict import STORABLE, Strict

MOST_INTEGRATIONS = 4
_OURS = ("mlflow.", "motet.")  # prefixes of tags that MLflow and the mirror set themselves

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


def _possible(asked: Any) -> Any:
    """Refuse other services in words: a task that only seemed to be mirrored would be found out too late."""
    others = {str(one.get("type")) for one in asked if isinstance(one, dict)} - {"mlflow"} if isinstance(asked, list) else None
    if others:
        named = ", ".join(sorted(others))[:64] if others != {"None"} else "a service without a type"
        raise ValueError(
            f"runs are not sent to {named}; mirror them to MLflow "
            '({"type": "mlflow", "server": the name of a tracking server, "experiment": its name there}), or leave it out, and '
            "let a program of yours log what GET /v1/tasks/{task_id}/metrics, or metrics.csv of an OpenAI job, tells"
        )
    return asked


def _each_server_once(given: list[MlflowIntegration]) -> list[MlflowIntegration]:
    names = [one.server for one in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names the tracking server {', '.join(twice)} twice; a task is mirrored to a server once")
    return given


Integrations = Annotated[
    list[MlflowIntegration],
    Field(max_length=MOST_INTEGRATIONS),
    AfterValidator(_each_server_once),
    BeforeValidator(_possible),
]
