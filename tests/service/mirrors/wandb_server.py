"""A tracking server as Weights & Biases' SDK 0.31 finds one: GraphQL for runs, the file stream for their points.

It takes what the SDK sends (wandb_sdk_calls.json has a recording) and refuses all else. A line of history that comes again must
be the line that is there.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from tests.service.mirrors.scripted_tracker import Answer, ScriptedTracker

KEY = "an-api-key-of-weights-and-biases-of-40-c"
STATUSES = {0: "FINISHED", 1: "FAILED", 255: "KILLED"}
VARIABLES = {"name", "project", "entity", "groupName", "displayName", "notes", "config", "jobType", "tags"}
INPUTS = {"name": "name", "project": "modelName", "entity": "entityName"}  # whose variables have other names
_STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Run:
    said: dict[str, Any] = field(default_factory=dict)  # as of upsertBucket, each as it was said last
    lines: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    status: str = "RUNNING"
    beats: int = 0
    deleted: bool = False

    @property
    def params(self) -> dict[str, Any]:
        return {name: held["value"] for name, held in json.loads(self.said["config"]).items()}

    @property
    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def curve(self, key: str) -> list[tuple[int, float]]:
        return [(line["step"], line[key]) for line in self.history if key in line]


class WandbServer(ScriptedTracker):
    def __init__(self, listens: bool = True) -> None:
        super().__init__(listens)
        self.entities = ["ada", "team"]  # the first is the key's default
        self.runs: dict[tuple[str, str, str], Run] = {}  # by entity, project and run
        self.wrong: list[str] = []  # calls of another form than the SDK's

    def run_of(self, job_id: str) -> Run:
        (found,) = [run for (_, _, name), run in self.runs.items() if name == job_id]
        return found

    def read(self, path: str, query: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if path == "/graphql":
            assert set(body) <= {"query", "variables", "operationName"}, body
            return ("upsertBucket" if "upsertBucket(" in body["query"] else "viewer"), body
        found = _STREAM.fullmatch(path)
        if found is None:
            return path, body
        return "file_stream", body | {"at": tuple(unquote(part) for part in found.groups())}

    def carry_out(self, call: str, asked: dict[str, Any], headers: dict[str, str]) -> Answer:
        if call.startswith("/"):
            return Answer(404, b"404 page not found")
        try:
            if headers.get("authorization") != f"Basic {base64.b64encode(f'api:{KEY}'.encode()).decode()}":
                raise Refusal(401, "user is not logged in")
            with self.lock:
                known = {"viewer": self._viewer, "upsertBucket": self._upsert, "file_stream": self._stream}
                said = known[call](asked)
        except Refusal as refused:
            return Answer(refused.status, json.dumps({"errors": [{"message": str(refused)}], "data": None}).encode())
        except AssertionError as error:
            self.wrong.append(f"{call}: {error}")
            return Answer(400, b'{"error": "another form than that of the SDK"}')
        return Answer(200, json.dumps(said).encode())

    def _viewer(self, asked: dict[str, Any]) -> Any:
        return {"data": {"viewer": {"entity": self.entities[0]}}}

    def _upsert(self, asked: dict[str, Any]) -> Any:
        said = asked["variables"]
        assert set(said) <= VARIABLES, said
        for name in VARIABLES:
            assert re.search(rf"\b{INPUTS.get(name, name)}: ?\${name}\b", asked["query"]), name
        if said["entity"] not in self.entities:
            raise Refusal(200, f"entity {said['entity']} not found during upsertBucket")
        at = (said["entity"], said["project"], said["name"])
        inserted = at not in self.runs
        run = self.runs.setdefault(at, Run())
        if run.deleted:
            raise Refusal(409, f"run {said['name']} was previously created and deleted; try a new run name")
        assert all(set(held) == {"value"} for held in json.loads(said.get("config") or "{}").values()), said["config"]
        assert all(isinstance(tag, str) for tag in said.get("tags") or ())
        run.said |= {name: value for name, value in said.items() if value is not None}
        project = {"name": at[1], "entity": {"name": at[0]}}
        bucket = {"id": "UnVuOnYxOg==", "name": at[2], "historyLineCount": len(run.lines), "project": project}
        return {"data": {"upsertBucket": {"bucket": bucket, "inserted": inserted}}}

    def _stream(self, asked: dict[str, Any]) -> Any:
        assert set(asked) <= {"at", "files", "complete", "exitcode"}, asked
        run = self.runs.get(asked["at"])
        if run is None or run.deleted:
            raise Refusal(404, f"run {'/'.join(asked['at'])} not found")
        files = asked.get("files", {})
        assert set(files) <= {"wandb-history.jsonl", "wandb-summary.json"}, files
        assert all(set(file) == {"offset", "content"} for file in files.values()), files
        if history := files.get("wandb-history.jsonl"):
            self._append(run, **history)
        if summary := files.get("wandb-summary.json"):
            (line,) = summary["content"]
            assert summary["offset"] == 0
            run.summary = json.loads(line)
        run.beats += not files
        if "complete" in asked:
            assert asked["complete"] is True
            run.status = STATUSES[asked["exitcode"]]
        return {"exitcode": None, "limits": {}}

    def _append(self, run: Run, offset: int, content: list[str]) -> None:
        assert offset <= len(run.lines), "a gap in the history"
        assert len(content) <= 1000, "more lines than the SDK sends at once"
        there = run.lines[offset : offset + len(content)]
        assert there == content[: len(there)], "another line at the same offset"
        run.lines += content[len(there) :]
        steps = [line["_step"] for line in run.history]
        assert all(first < second for first, second in pairwise(steps)), steps
        assert all(isinstance(line["_timestamp"], float) and line["_runtime"] >= 0 for line in run.history)
