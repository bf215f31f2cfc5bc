"""A tracking server as MLflow's REST API has one: its calls, bounds and errors, compared with MLflow 3.17. It keeps every point
that it is sent, as MLflow's file store does, so one that is sent twice is seen."""

import json
import math
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from tests.service.mirrors.scripted_tracker import Answer, ScriptedTracker

API = "/api/2.0/mlflow/"


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Run:
    id: str
    experiment: str
    name: str
    tags: dict[str, str]
    status: str = "RUNNING"
    stage: str = "active"
    params: dict[str, str] = field(default_factory=dict)
    points: list[tuple[str, int, float, int]] = field(default_factory=list)  # key, step, value, time

    def curve(self, key: str) -> list[tuple[int, float]]:
        """In the order in which the points came."""
        return [(step, value) for of, step, value, _ in self.points if of == key]


class MlflowServer(ScriptedTracker):
    def __init__(self) -> None:
        super().__init__()
        self.experiments: dict[str, dict[str, str]] = {}  # by name
        self.runs: dict[str, Run] = {}

    def read(self, path: str, query: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return path.removeprefix(API), body or dict(parse_qsl(query))

    def carry_out(self, call: str, asked: dict[str, Any], headers: dict[str, str]) -> Answer:
        try:
            return Answer(200, json.dumps(self.answer(call, asked)).encode())
        except Refusal as refused:
            status = 404 if refused.code == "RESOURCE_DOES_NOT_EXIST" else 400
            return Answer(status, json.dumps({"error_code": refused.code, "message": str(refused)}).encode())

    def run_of(self, job_id: str) -> Run:
        (found,) = [run for run in self.runs.values() if run.tags.get("motet.job") == job_id]
        return found

    def run_of_task(self, task_id: str) -> Run:
        tags = [(run, run.tags.get("motet.task"), "motet.job" in run.tags) for run in self.runs.values()]
        (found,) = [run for run, of, job in tags if of == task_id and not job]
        return found

    def answer(self, call: str, asked: dict[str, Any]) -> Any:
        with self.lock:
            known = {
                "experiments/get-by-name": self._get_by_name,
                "experiments/create": self._create_experiment,
                "runs/create": self._create_run,
                "runs/search": self._search,
                "runs/get": self._get_run,
                "runs/log-batch": self._log_batch,
                "runs/update": self._update,
            }
            return known[call](asked)

    def _get_by_name(self, asked: dict[str, Any]) -> Any:
        if asked["experiment_name"] not in self.experiments:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{asked['experiment_name']}'")
        return {"experiment": self.experiments[asked["experiment_name"]]}

    def _create_experiment(self, asked: dict[str, Any]) -> Any:
        if asked["name"] in self.experiments:
            raise Refusal("RESOURCE_ALREADY_EXISTS", f"Experiment(name={asked['name']}) already exists.")
        made = {"experiment_id": str(len(self.experiments) + 1), "name": asked["name"], "lifecycle_stage": "active"}
        self.experiments[asked["name"]] = made
        return {"experiment_id": made["experiment_id"]}

    def _create_run(self, asked: dict[str, Any]) -> Any:
        found = [one for one in self.experiments.values() if one["experiment_id"] == asked["experiment_id"]]
        if not found:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"No Experiment with id={asked['experiment_id']} exists")
        if found[0]["lifecycle_stage"] == "deleted":
            raise Refusal("INVALID_PARAMETER_VALUE", "The experiment must be in the 'active' state. Current state is deleted.")
        tags = {one["key"]: one["value"] for one in asked.get("tags", [])}
        run = Run(secrets.token_hex(16), asked["experiment_id"], asked["run_name"], tags)
        self.runs[run.id] = run
        return {"run": _told(run)}

    def _search(self, asked: dict[str, Any]) -> Any:
        key, _, value = asked["filter"].removeprefix("tags.`").partition("` = ")
        found = [
            run
            for run in self.runs.values()
            if run.experiment in asked["experiment_ids"] and run.stage == "active" and run.tags.get(key) == value.strip("'")
        ]
        first = int(asked.get("page_token", 0))
        shown, last = found[first : first + asked["max_results"]], first + asked["max_results"]
        said: dict[str, Any] = {"runs": [_told(run) for run in shown]} if shown else {}
        return said | ({"next_page_token": str(last)} if last < len(found) else {})

    def _run(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"Run with id={run_id} not found")
        return self.runs[run_id]

    def _active(self, run_id: str) -> Run:
        run = self._run(run_id)
        if run.stage != "active":
            raise Refusal(
                "INVALID_PARAMETER_VALUE", f"The run {run_id} must be in the 'active' state. Current state is deleted."
            )
        return run

    def _get_run(self, asked: dict[str, Any]) -> Any:
        return {"run": _told(self._run(asked["run_id"]))}

    def _log_batch(self, asked: dict[str, Any]) -> Any:
        run = self._active(asked["run_id"])
        for kind, most in (("metrics", 1000), ("params", 100), ("tags", 100)):
            if len(asked.get(kind, [])) > most:
                raise Refusal("INVALID_PARAMETER_VALUE", f"A batch logging request can contain at most {most} {kind}.")
        if (count := sum(len(asked.get(kind, [])) for kind in ("metrics", "params", "tags"))) > 1000:
            raise Refusal("INVALID_PARAMETER_VALUE", f"at most 1000 metrics, params, and tags. Got {count}")
        params = {one["key"]: one["value"] for one in asked.get("params", [])}
        if changed := [key for key, value in params.items() if run.params.get(key, value) != value]:
            raise Refusal(
                "INVALID_PARAMETER_VALUE", f"Changing param values is not allowed. Params were already logged={changed}"
            )
        run.params |= params
        for one in asked.get("metrics", []):
            assert isinstance(one["timestamp"], int), one
            assert isinstance(one["step"], int), one
            run.points.append((one["key"], one["step"], float(one["value"]), one["timestamp"]))
        run.tags |= {one["key"]: one["value"] for one in asked.get("tags", [])}
        return {}

    def _update(self, asked: dict[str, Any]) -> Any:
        run = self._active(asked["run_id"])
        if asked["status"] not in ("RUNNING", "FINISHED", "FAILED", "KILLED"):
            raise Refusal("INVALID_PARAMETER_VALUE", f"Invalid value {asked['status']} for parameter 'status'")
        assert isinstance(asked["end_time"], int)
        run.status = asked["status"]
        return {"run_info": {"run_id": run.id, "status": run.status}}


def _told(run: Run) -> dict[str, Any]:
    last = {key: (step, value) for key, step, value, _ in sorted(run.points, key=lambda point: point[1])}
    metrics = [
        {"key": key, "step": step, "value": "NaN" if math.isnan(value) else value, "timestamp": 1}
        for key, (step, value) in last.items()
    ]
    data = {"tags": [{"key": key, "value": value} for key, value in run.tags.items()]}
    info = {"run_id": run.id, "run_uuid": run.id, "status": run.status, "lifecycle_stage": run.stage}
    return {"info": info, "data": data | ({"metrics": metrics} if metrics else {})}
