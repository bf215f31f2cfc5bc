"""The API reference: every operation is there, and every example runs in a shell."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from contract.states import TaskStatus
from service.database.checked_json import required
from service.database.engine import Database, clock, new_id
from service.fleet.models import BaseModel, Node
from service.merges.models import MergedModel
from service.storage.object_store import Storage
from service.tasks.lifecycle.transitions import enter
from service.tasks.models import Task
from service.tenants.api_keys import Scope, mint_key
from service.tenants.member_roles import Role
from service.web.views.api_reference import operations
from service.webhooks.models import Delivery
from tests.service.adapters.adapter_uploads import CONFIG, safetensors, tensors
from tests.service.api import Caller, jsonl
from tests.service.sample_tasks import adapter, hub_push, jobs_of
from tests.service.web.page_samples import FOLDER

WEIGHTS = b"w" * 4096
# what needs a hub, a base's files, or an identity provider, which these tests' service lacks: it says so
_LACKING = {
    "preview_file": "tokenizer",
    "add_model": "hub",
    "create_hub_push": "hub",
    "allow_model": "/models/llama-3.2-1b",
    "allow_stored_model": "config.json",
    "begin_device_sign_in": "identity provider",
    "poll_device_sign_in": "identity provider",
}
_ENDED = (TaskStatus.CANCELLED,)
_STATES = {
    "get_task_adapter": (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.SUCCEEDED),
    "delete_adapter": _ENDED,
    "delete_task": _ENDED,
    "archive_task": _ENDED,
    "resume_task": (TaskStatus.QUEUED, TaskStatus.PAUSED),
}


def test_every_example_has_the_fields_that_it_must(app):
    for of_tag in operations(app.openapi(), "http://api").values():
        for one in of_tag:
            if (body := re.search(r"-d '(.*)' \"http", one.example)) is not None:
                said = json.loads(body[1].replace("'\"", "").replace("\"'", ""))
                assert {field.name for field in one.fields if field.required} <= said.keys(), one.id
                assert said.keys() <= {field.name for field in one.fields}, one.id


def test_the_reference_holds_every_operation(visitor, app):
    page = visitor.open("/docs")
    ids = {said["operationId"] for path in app.openapi()["paths"].values() for said in path.values()}
    shown = set(page.locator(".operation").evaluate_all("all => all.map(one => one.id)"))
    assert shown == ids
    assert "Authorization: Bearer $MOTET_API_KEY" in page.text_content("#x-list_tasks")


class Things:
    """Makes what an example's variables name, anew for each: some examples end what they name."""

    def __init__(self, owner: Caller, admin: Caller, make_member: Callable[..., Caller], database: Database, storage: Storage):
        self.owner, self.admin = owner, admin
        self._make_member, self._database, self._storage = make_member, database, storage

    def named(self, operation: str, example: str) -> dict[str, str]:
        """What the example's variables stand for."""
        made = {
            "BASE_MODEL": {"create_adapter": "toy", "remove_model": "unused"}.get(operation, "small"),
            "HANDLE": "unknown",
            "HF_TOKEN": "hf_token",
            "NODE_NAME": "gpu-7",
            "DEVICE_TYPE": "a type",
            "FROM_DAY": "2026-01-01",
            "SHA256": hashlib.sha256(WEIGHTS).hexdigest(),
            "TENANT_ID": self.owner.tenant_id,
        }
        makers: dict[str, Callable[[], dict[str, str]]] = {
            "TASK_ID": lambda: self._task(operation),
            "JOB_ID": lambda: self._task(operation),
            "ADAPTER_ID": lambda: self._task(operation),
            "FILE_ID": lambda: {"FILE_ID": self.owner.file()},
            "BATCH_ID": lambda: _made(self.owner, "/v1/batches", tasks=[self.owner.spec(self.owner.file())]),
            "WEBHOOK_ID": self._webhook,
            "SERVER_ID": lambda: _made(self.owner, "/v1/tracking-servers", name=new_id("lab"), url="https://example.com"),
            "PUSH_ID": self._push,
            "MERGED_ID": lambda: self._merged(operation),
            "KEY_ID": lambda: _made(self.owner, "/v1/keys", name="another", scopes=["read"]),
            "ACCOUNT_ID": lambda: _made(self.owner, "/v1/service-accounts", name=f"of {operation}", role="editor"),
            "INVITATION_ID": lambda: _made(self.owner, "/v1/invitations", role="viewer"),
            "TOKEN_ID": lambda: _made(self.admin, "/v1/admin/join-tokens", node_name=operation.replace("_", "-")),
            "USER_ID": lambda: {"USER_ID": self._make_member(Role.EDITOR, of=self.owner).get("/v1/me").json()["user_id"]},
            "NODE_ID": lambda: self._node("lost" if operation == "delete_node" else "ready"),
            "FROM_DAY": lambda: _made(
                self.admin, "/v1/admin/prices", "PUT", device_type="a type", from_day="2026-01-01", per_hour=1
            ),
        }
        for name in re.findall(r"\$([A-Z_]+)", example):
            if name in makers and name not in made.keys() - {"FROM_DAY"}:
                found = makers[name]()
                made |= found if name in found else {name: found.get("id", made.get(name))}
        return made

    def _task(self, operation: str) -> dict[str, str]:
        task = self.owner.task()["id"]
        with self._database.begin() as session:
            row, (job, *_) = session.get_one(Task, task), jobs_of(session, task)
            row.winner_job_id, made = job.id, adapter(session, self._storage, job, FOLDER)
            for status in _STATES.get(operation, ()):
                enter(row, status, clock(session))
            return {"TASK_ID": task, "JOB_ID": job.id, "ADAPTER_ID": made.id}

    def _merged(self, operation: str) -> dict[str, str]:
        merged = _made(self.owner, "/v1/merged-models", adapter_id=self._task(operation)["ADAPTER_ID"])["id"]
        with self._database.begin() as session:
            row = session.get_one(MergedModel, merged)
            row.files = [required(row.adapter_files)[0].model_copy(update={"path": "config.json"})]
        return {"MERGED_ID": merged}

    def _push(self) -> dict[str, str]:
        with self._database.begin() as session:
            return {"PUSH_ID": hub_push(session, self.owner.tenant_id).id}

    def _webhook(self) -> dict[str, str]:
        hook = _made(self.owner, "/v1/webhooks", url="https://example.com/hook", events=["task.succeeded"])["id"]
        delivery = _made(self.owner, f"/v1/webhooks/{hook}/test")["id"]
        with self._database.begin() as session:
            session.get_one(Delivery, delivery).status = "failed"
        return {"WEBHOOK_ID": hook, "DELIVERY_ID": delivery}

    def _node(self, status: str) -> dict[str, str]:
        device = {"index": 0, "type": "H100", "memory_bytes": 80 * 2**30}
        with self._database.begin() as session:
            node = Node(id=new_id("node"), name=new_id("n"), boot_id="b", status=status, devices=[device], versions={})
            node.credential_hash = b""
            session.add(node)
            return {"NODE_ID": node.id}


def _made(caller: Caller, path: str, method: str = "POST", **said: Any) -> dict[str, Any]:
    answer = caller.request(method, path, json=said or None)
    assert answer.status_code < 300, (path, answer.text)
    return dict(answer.json())


@pytest.mark.usefixtures("toy")
def test_every_example_runs(app, server, new_member, database, storage, tmp_path):
    owner = new_member(Role.OWNER)
    with database.begin() as session:
        _, key = mint_key(session, owner.tenant_id, "admin", tuple(Scope))
        kinds = {"architecture": "LlamaForCausalLM", "parameters": 10, "max_position": 64}
        session.add(BaseModel(name="unused", source="/models/unused", revision="b" * 64, **kinds))
    things = Things(owner, Caller(owner.client, owner.tenant_id, key), new_member, database, storage)
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "train.jsonl").write_bytes(jsonl(*({"prompt": f"{n} + 1?", "completion": f"{n + 1}"} for n in range(10))))
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "adapter_model.safetensors").write_bytes(safetensors(tensors()))
    (trained / "adapter_config.json").write_text(json.dumps(CONFIG))
    failed = {}
    for tag, of_tag in operations(app.openapi(), server.url).items():
        for one in of_tag:
            variables = things.named(one.id, one.example) | {
                "MOTET_API_KEY": key if tag in ("admin", "models", "usage", "health") else owner.key
            }
            command = one.example.replace(
                "curl ", "curl --max-time 30 " if "events" not in one.path else "curl --max-time 1 ", 1
            )
            ran = subprocess.run(
                ["bash", "-uc", command],
                cwd=trained if one.id == "create_adapter" else tmp_path,
                env=os.environ | variables,
                capture_output=True,
                text=True,
            )
            lacks = _LACKING.get(one.id)
            streams = ran.returncode == 28 and "event:" in ran.stdout
            right = lacks in ran.stdout if lacks else ran.returncode == 0 or streams
            if not right:
                failed[one.id] = (ran.returncode, ran.stdout[:300], ran.stderr[:200])
    assert not failed, "\n".join(f"{id}: {said}" for id, said in failed.items())
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {}, "the last of what was downloaded"
