"""MLflow's REST API (version 2.0 of it), as far as mirrors need it. Knows no tables and no tasks.

The form of answers is checked, since a tenant's server may answer anything.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from service.http.outbound import Outbound
from service.mirrors.tracker import CallFailed, Metric
from service.mirrors.tracker_calls import AGAIN, Answered, TrackerCalls, basic

MOST_PARAMS, MOST_PARAM = 100, 500  # MLflow's bounds: params of a batch, characters of one (later 6,000)
_API = "/api/2.0/mlflow/"
_RUNS_PER_PAGE, _PAGES = 50, 100  # of a search: a run may have many tags, and an answer has a bound
_SEARCH_SECONDS = 20.0  # until its last page is asked for: a claim outlives a search and the call after it
_GONE, _THERE = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


def authorization(credentials: Mapping[str, str]) -> dict[str, str]:
    """The headers of a `token`, of a `username` and `password`, or of neither."""
    if "token" in credentials:
        return {"Authorization": f"Bearer {credentials['token']}"}
    if "username" in credentials:
        return basic(credentials["username"], credentials["password"])
    return {}


class MlflowClient:
    """Calls one server. Every method raises CallFailed."""

    def __init__(self, outbound: Outbound, url: str, credentials: Mapping[str, str]) -> None:
        self.calls = TrackerCalls(outbound, url, authorization(credentials))

    def experiment(self, name: str) -> str:
        """The id of the experiment, which is made where there is none."""
        if (found := self._experiment_named(name)) is not None:
            return found
        try:
            return _id(self._post("experiments/create", {"name": name}), "experiment_id")
        except CallFailed as failed:
            if failed.code != _THERE:
                raise
        if (found := self._experiment_named(name)) is None:  # another made it at that moment
            raise CallFailed("experiments/create says that the experiment exists, experiments/get-by-name that it does not")
        return found

    def _experiment_named(self, name: str) -> str | None:
        try:
            experiment = _object(self._get("experiments/get-by-name", experiment_name=name), "experiment")
        except CallFailed as failed:
            if failed.code == _GONE:
                return None
            raise
        if experiment.get("lifecycle_stage") == "deleted":
            raise CallFailed("the experiment is deleted there; restore it, or post the task with another one", final=True)
        return _id(experiment, "experiment_id")

    def runs_with_tag(self, experiment_id: str, tag: str, value: str, wanted: str) -> dict[str, str]:
        """Ids of the experiment's runs with this tag (deleted ones left out), by their tag `wanted`; "" for runs without it."""
        asked: dict[str, Any] = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{tag}` = '{value}'",
            "run_view_type": "ACTIVE_ONLY",
            "max_results": _RUNS_PER_PAGE,
        }
        found: dict[str, str] = {}
        until = time.monotonic() + _SEARCH_SECONDS
        for _ in range(_PAGES):
            said = self._post("runs/search", asked)
            for run in _list(said, "runs"):
                tags = _list(_object(run, "data"), "tags")
                of = next((one.get("value") for one in tags if isinstance(one, dict) and one.get("key") == wanted), "")
                found.setdefault(str(of), _id(_object(run, "info"), "run_id"))
            token = said.get("next_page_token")
            if not isinstance(token, str) or not token:
                return found
            if time.monotonic() >= until:
                raise CallFailed(f"runs/search did not end within {_SEARCH_SECONDS:g} s")
            asked["page_token"] = token
        raise CallFailed(f"runs/search did not end after {_PAGES} pages")

    def create_run(self, experiment_id: str, name: str, started: int, tags: Mapping[str, str]) -> str:
        """The id of a new run. started: milliseconds since 1970."""
        asked = {"experiment_id": experiment_id, "run_name": name, "start_time": started, "tags": _pairs(tags)}
        return _id(_object(_object(self._post("runs/create", asked), "run"), "info"), "run_id")

    def log(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to the run, within MLflow's bounds of a batch. A param may be logged again with the same value alone."""
        points = [
            {"key": one.key, "value": one.value if one.value == one.value else "NaN", "timestamp": one.at, "step": one.step}
            for one in metrics
        ]
        cut = {name: value[:MOST_PARAM] for name, value in list((params or {}).items())[:MOST_PARAMS]}
        self._post("runs/log-batch", {"run_id": run_id, "metrics": points, "params": _pairs(cut), "tags": _pairs(tags or {})})

    def last_steps(self, run_id: str) -> dict[str, int]:
        """The last step of each metric that the run has."""
        data = _object(_object(self._get("runs/get", run_id=run_id), "run"), "data")
        metrics = [one for one in _list(data, "metrics") if isinstance(one, dict) and isinstance(one.get("key"), str)]
        return {one["key"]: _step(one.get("step", 0)) for one in metrics}

    def end_run(self, run_id: str, status: RunStatus, ended: int) -> None:
        """ended: milliseconds since 1970."""
        self._post("runs/update", {"run_id": run_id, "status": status, "end_time": ended})

    def _get(self, call: str, **query: str) -> Mapping[str, Any]:
        return _checked(call, self.calls.get(_API + call, call, **query))

    def _post(self, call: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return _checked(call, self.calls.post(_API + call, call, body))


def _checked(call: str, answer: Answered) -> Mapping[str, Any]:
    said = answer.said
    if answer.status == 200 and said is not None:
        return said
    if answer.status == 200:
        raise CallFailed(f"{call} answered no JSON object; is the URL that of an MLflow tracking server?")
    code = said.get("error_code") if said is not None else None
    code = code if isinstance(code, str) else None
    words = f" {code}: {said.get('message')}" if said is not None and code is not None else ""
    mendable = code is None or answer.status >= 500 or (answer.status in AGAIN and code != _GONE)
    raise CallFailed(f"{call} answered {answer.status}{words}{answer.moved}", not mendable, code, answer.wait)


def _object(said: Any, name: str) -> dict[str, Any]:
    found = said.get(name) if isinstance(said, dict) else None
    if not isinstance(found, dict):
        raise CallFailed(f"an answer lacks '{name}'; is the URL that of an MLflow tracking server?")
    return found


def _list(said: Mapping[str, Any], name: str) -> list[Any]:
    """MLflow leaves empty lists out."""
    found = said.get(name, [])
    if not isinstance(found, list):
        raise CallFailed(f"an answer has another '{name}' than MLflow's; is the URL that of an MLflow tracking server?")
    return found


def _id(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str) or _ID.fullmatch(found) is None:
        raise CallFailed(f"an answer's '{name}' is no id; is the URL that of an MLflow tracking server?")
    return found


def _step(said: Any) -> int:
    """An integer of 64 bits, which some servers write as a string, as Protocol Buffers do."""
    if isinstance(said, str) and re.fullmatch(r"-?[0-9]{1,18}", said):
        said = int(said)
    if isinstance(said, bool) or not isinstance(said, int):
        raise CallFailed("an answer's 'step' is no integer; is the URL that of an MLflow tracking server?")
    return said


def _pairs(said: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in said.items()]
