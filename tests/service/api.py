"""Calls to the API as one tenant, and the few things most tests need made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.testclient import TestClient

CHAT = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
PAIR = {"prompt": "2 + 2?", "completion": "4"}


def jsonl(*rows: Any) -> bytes:
    """A data set of these rows."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def chat_rows(count: int) -> list[dict[str, Any]]:
    """Different chat rows."""
    return [
        {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"{n + 1}"}]}
        for n in range(count)
    ]


@dataclass(frozen=True)
class Caller:
    """One tenant's key in use. `get("/v1/tasks")` and so on return the response, whatever it is."""

    client: TestClient
    tenant_id: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def request(self, method: str, path: str, **how: Any) -> Any:
        return self.client.request(method, path, headers=self.headers | how.pop("headers", {}), **how)

    def get(self, path: str, **how: Any) -> Any:
        return self.request("GET", path, **how)

    def post(self, path: str, **how: Any) -> Any:
        return self.request("POST", path, **how)

    def put(self, path: str, **how: Any) -> Any:
        return self.request("PUT", path, **how)

    def patch(self, path: str, **how: Any) -> Any:
        return self.request("PATCH", path, **how)

    def delete(self, path: str, **how: Any) -> Any:
        return self.request("DELETE", path, **how)

    def upload(self, content: bytes, filename: str = "train.jsonl", **fields: str) -> Any:
        return self.post("/v1/files", files={"file": (filename, content)}, data=fields)

    def file(self, rows: Sequence[Any] | None = None) -> str:
        """Upload these rows (20 chat rows, if none are given); the file's id."""
        response = self.upload(jsonl(*(chat_rows(20) if rows is None else rows)))
        assert response.status_code == 201, response.text
        return response.json()["id"]

    def spec(self, file_id: str, **changes: Any) -> dict[str, Any]:
        """A task of two jobs on the model "small"."""
        spec = {
            "base_model": "small",
            "dataset": {"file_id": file_id},
            "search_space": {"learning_rate": [1e-4, 1e-3], "batch_size": [4]},
            "training": {"max_seq_len": 64},
        }
        return spec | changes

    def task(self, **changes: Any) -> dict[str, Any]:
        """A new task on a new file; its resource. There must be a model "small" (fixture `small_model`)."""
        response = self.post("/v1/tasks", json=self.spec(self.file(), **changes))
        assert response.status_code == 201, response.text
        return response.json()
