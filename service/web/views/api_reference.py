"""The OpenAPI document as a page shows it: operations by tag, their fields, and an example that runs. Pure.

An example names by shell variables what only the reader can know: an id of theirs, as `$TASK_ID`.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

_TASK = {
    "base_model": "$BASE_MODEL",
    "dataset": {"file_id": "$FILE_ID"},
    "search_space": {"learning_rate": [1e-4, 1e-3], "rank": [8, 16]},
}
_KEY = {"name": "ci", "scopes": ["read", "write"]}
_FILES = [{"path": "model.safetensors", "sha256": "$SHA256", "bytes": 4096}]
_EXAMPLES: dict[str, Any] = {  # by operation; bodies whose fields are all optional may be left out
    "create_task": _TASK,
    "estimate_task": _TASK,
    "create_batch": {"tasks": [_TASK, _TASK | {"name": "another"}]},
    "estimate_batch": {"tasks": [_TASK, _TASK | {"name": "another"}]},
    "preview_file": {"file_id": "$FILE_ID", "base_model": "$BASE_MODEL"},
    "create_webhook": {"url": "https://example.com/hook", "events": ["task.succeeded", "task.failed"]},
    "change_webhook": {"enabled": False},
    "create_tracking_server": {"name": "lab", "url": "https://mlflow.example.com", "credentials": {"token": "a token"}},
    "change_tracking_server": {"credentials": {"token": "another token"}},
    "create_merged_model": {"adapter_id": "$ADAPTER_ID"},
    "create_hub_push": {"adapter_id": "$ADAPTER_ID", "repository": "organisation/name", "token": "$HF_TOKEN"},
    "create_own_key": _KEY,
    "create_key": _KEY,
    "create_tenant": {"name": "acme"},
    "change_tenant": {"weight": 2},
    "add_model": {"source": "hf://organisation/name", "revision": "main"},
    "allow_model": {"name": "llama-3.2-1b", "source": "/models/llama-3.2-1b"},
    "find_missing_model_files": {"files": _FILES},
    "allow_stored_model": {"name": "ours", "files": _FILES},
    "create_join_token": {"node_name": "$NODE_NAME"},
    "drain_node": {"evict": True},
    "set_price": {"device_type": "NVIDIA H100 80GB HBM3", "per_hour": 2.5},
    "change_member": {"role": "viewer"},
    "create_invitation": {"email": "ada@example.com", "role": "editor"},
    "create_invitation_of": {"email": "ada@example.com", "role": "owner"},
    "create_service_account": {"name": "ci"},
    "change_service_account": {"role": "viewer"},
    "create_service_account_key": {"name": "ci"},
    "poll_device_sign_in": {"handle": "$HANDLE", "name": "my program"},
}


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    required: bool
    words: str


@dataclass(frozen=True)
class Operation:
    id: str
    method: str
    path: str
    summary: str
    words: str
    parameters: list[Field]
    body: str | None
    fields: list[Field]
    answers: list[tuple[str, str]]
    example: str


def operations(document: dict[str, Any], api_url: str) -> dict[str, list[Operation]]:
    """The operations by tag, in the document's order."""
    found: dict[str, list[Operation]] = {}
    for path, of_path in document["paths"].items():
        for method, said in of_path.items():
            found.setdefault((said.get("tags") or ["other"])[0], []).append(_operation(document, api_url, path, method, said))
    return found


def _operation(document: dict[str, Any], api_url: str, path: str, method: str, said: dict[str, Any]) -> Operation:
    body = said.get("requestBody", {}).get("content", {})
    kind, schema = next(((kind, one.get("schema", {})) for kind, one in body.items()), (None, {}))
    schema = _resolved(document, schema)
    return Operation(
        id=said["operationId"],
        method=method.upper(),
        path=path,
        summary=said.get("summary", ""),
        words=said.get("description", ""),
        parameters=[
            Field(
                one["name"],
                f"{one['in']}, {_kind(one.get('schema', {}))}",
                one.get("required", False),
                one.get("description", ""),
            )
            for one in said.get("parameters", [])
        ],
        body=kind,
        fields=[
            Field(name, _kind(one), name in schema.get("required", []), one.get("description", ""))
            for name, one in schema.get("properties", {}).items()
        ],
        answers=[(status, answer.get("description", "")) for status, answer in said["responses"].items()],
        example=_example(api_url, path, method, said, kind),
    )


def _example(api_url: str, path: str, method: str, said: dict[str, Any], kind: str | None) -> str:
    words = ["curl -sS --fail-with-body", *_OUTPUT.get(_answer_kind(said), ()), '-H "Authorization: Bearer $MOTET_API_KEY"']
    if method != "get":
        words.append(f"-X {method.upper()}")
    if kind == "multipart/form-data":
        words += _FORMS.get(said["operationId"], ("-F file=@train.jsonl",))
    elif kind == "application/json":
        body = json.dumps(_EXAMPLES.get(said["operationId"], {}), ensure_ascii=False)
        words.append(f"-H 'Content-Type: application/json' -d '{_SHELL_VARIABLE.sub(_unquoted, body)}'")
    elif kind == "application/octet-stream":
        words.append("--data-binary @model.safetensors")
    query = [one["name"] for one in said.get("parameters", []) if one["in"] == "query" and one.get("required")]
    words += ["-G" for _ in query[:1]] + [f'--data-urlencode "{name}=${name.upper()}"' for name in query]
    place = _PLACE.sub(lambda found: _PLACES.get(found[1], "$" + found[1].upper()), path)
    return " ".join([*words, f'"{api_url}{place}"'])


_PLACES = {"name": "$BASE_MODEL", "path": "adapter_config.json", "file": "config.json"}  # $PATH is the shell's
_FORMS = {
    "create_adapter": (
        "-F file=@adapter_model.safetensors",
        '-F "config=<adapter_config.json"',
        '-F "base_model=$BASE_MODEL"',
    )
}
_PLACE = re.compile(r"{(\w+)}")
_SHELL_VARIABLE = re.compile(r"\$[A-Z][A-Z0-9_]*")
_OUTPUT = {  # by the kind of answer; whatever is stored in a bucket is answered with its address there
    "text/event-stream": ("-N",),
    "application/gzip": ("-L -O -J",),
    "application/octet-stream": ("-L -O -J",),
    "application/jsonl": ("-L",),
    "text/csv": ("-L",),
}


def _answer_kind(said: dict[str, Any]) -> str:
    return next((kind for answer in said["responses"].values() for kind in answer.get("content", {})), "")


def _unquoted(variable: re.Match[str]) -> str:
    """The variable in a text of single quotes, where the shell would not replace it."""
    return f"'\"{variable[0]}\"'"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for one in (schema, *schema.get("anyOf", []), *schema.get("allOf", [])):
        if "$ref" in one:
            found: dict[str, Any] = document["components"]["schemas"][one["$ref"].rpartition("/")[2]]
            return found
    return schema


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("const", schema.get("type", "any")))
