"""Weights & Biases' API, as far as mirrors need it: GraphQL for runs, the file stream for their points. Knows no tables and no
tasks. The calls are those of its SDK 0.31.

A line of a run's history has an offset, its number: the server keeps what it has there, so lines may be sent again. The form of
answers is checked, since a tenant's server may answer anything.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from contract.integrations import PATH_PART
from service.http.outbound import Outbound
from service.mirrors.tracker import CallFailed
from service.mirrors.tracker_calls import AGAIN, Answered, TrackerCalls, basic

_WHOSE = "is the URL that of a Weights & Biases server?"
_VIEWER = "query Viewer { viewer { entity } }"
_UPSERT = """mutation UpsertBucket($name: String, $project: String, $entity: String, $groupName: String, $displayName: String,
  $notes: String, $config: JSONString, $jobType: String, $tags: [String!]) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, groupName: $groupName, displayName: $displayName,
    notes: $notes, config: $config, jobType: $jobType, tags: $tags}) {
    bucket { id name project { name entity { name } } }
    inserted
  }
}"""


class WandbClient:
    """Calls one server. Every method raises CallFailed, and may be called again."""

    def __init__(self, outbound: Outbound, url: str, credentials: Mapping[str, str]) -> None:
        self.calls = TrackerCalls(outbound, url, basic("api", credentials.get("api_key", "")))

    def default_entity(self) -> str:
        """Where runs of this API key lie if nobody says otherwise."""
        viewer = self._graphql("viewer", _VIEWER, {}).get("viewer")
        entity = viewer.get("entity") if isinstance(viewer, dict) else None
        if viewer is None:
            raise CallFailed("viewer answered nobody: the API key is not known there")
        if not isinstance(entity, str) or re.fullmatch(PATH_PART, entity) is None:
            raise CallFailed("viewer answered no default entity; name one in the integration's 'entity'")
        return entity

    def upsert_run(self, entity: str, project: str, run: str, **said: Any) -> None:
        """Make or change the run, and its project where there is none. said: `groupName`, `displayName`, `notes`, `config` (by
        name, plain), `jobType`, `tags`, which replace those that are there."""
        if "config" in said:
            said["config"] = json.dumps({name: {"value": value} for name, value in said["config"].items()})
        made = self._graphql("upsertBucket", _UPSERT, {"name": run, "project": project, "entity": entity, **said})
        bucket = made.get("upsertBucket")
        bucket = bucket.get("bucket") if isinstance(bucket, dict) else None
        if not isinstance(bucket, dict) or bucket.get("name") != run:
            raise CallFailed(f"upsertBucket answered another run than the one that was made; {_WHOSE}")

    def stream(
        self,
        path: tuple[str, str, str],
        offset: int = 0,
        lines: Sequence[Mapping[str, Any]] = (),
        summary: Mapping[str, Any] | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Say that the run at `path` (entity, project, run) goes on, add `lines` to its history from line `offset` on, replace
        its summary, and end it if there is an exit code."""
        files: dict[str, Any] = {}
        if lines:
            files["wandb-history.jsonl"] = {"offset": offset, "content": [json.dumps(line) for line in lines]}
        if summary is not None:
            files["wandb-summary.json"] = {"offset": 0, "content": [json.dumps(summary)]}
        body: dict[str, Any] = {"files": files} if files else {}
        if exit_code is not None:
            body |= {"complete": True, "exitcode": exit_code}
        at = "/".join(quote(part, safe="") for part in path)
        answer = self.calls.post(f"/files/{at}/file_stream", "file_stream", body)
        _checked("file_stream", answer)

    def _graphql(self, call: str, query: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self.calls.post("/graphql", call, {"query": query, "variables": variables})
        said = _checked(call, answer)
        data = said.get("data")
        if said.get("errors"):  # it answers most of its refusals so, mendable ones too
            raise CallFailed(f"{call} answered{_words(said)}", wait=answer.wait)
        if not isinstance(data, dict):
            raise CallFailed(f"{call} answered no 'data'; {_WHOSE}")
        return data


def _checked(call: str, answer: Answered) -> Mapping[str, Any]:
    if answer.status == 200 and answer.said is not None:
        return answer.said
    if answer.status == 200:
        raise CallFailed(f"{call} answered no JSON object; {_WHOSE}")
    why = f"{call} answered {answer.status}{_words(answer.said or {})}{answer.moved}"
    if answer.status == 401:
        why += "; is the API key right?"
    if answer.status == 409:
        why += "; a run that was deleted there cannot be made again"
    final = 400 <= answer.status < 500 and answer.status not in AGAIN
    raise CallFailed(why, final, wait=answer.wait)


def _words(said: Mapping[str, Any]) -> str:
    """What the server says of it: GraphQL's errors, or an `error` of its other calls."""
    errors = said.get("errors", said.get("error"))
    first = errors[0] if isinstance(errors, list) and errors else errors
    message = first.get("message") if isinstance(first, dict) else first
    return f": {message}" if isinstance(message, str) and message else ""
