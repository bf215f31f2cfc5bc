"""The `motet` command line against a real service: what it prints, as text and as JSON, what it keeps, and how it exits."""

import json
import re
import stat

import pytest
from motet.api import keyring

from service.database.engine import new_id
from service.fleet.models import Node
from tests.service.adapters.adapter_uploads import CONFIG, safetensors, tensors
from tests.service.live_server import Server


def test_login_keeps_several_services_in_a_file_for_its_owner_alone(motet, server: Server, caller, home):
    assert motet("login", "http://127.0.0.1:1", stdin="mk_1\n").code == 3, "a service that does not answer is not kept"
    refused = motet("login", server.url, stdin="mk_wrong\n")
    assert (refused.code, refused.err.count("\n")) == (3, 1)
    assert motet("login", server.url).code == 2, "nothing on standard input"
    assert not keyring.keyring_file().exists()

    assert motet("login", server.url, "--name", "prod", "--admin", stdin=f"{caller.key}\n{caller.key}\n").code == 0
    assert motet("login", f"{server.url}/", "--name", "test", stdin=f" {caller.key} \n").code == 0
    assert stat.S_IMODE(keyring.keyring_file().stat().st_mode) == 0o600
    assert [(one["name"], one["in_use"]) for one in motet("services", "--json").json] == [("prod", False), ("test", True)]
    assert motet("tasks", "--json").json == []
    assert motet("nodes").code == 3, "this one has no admin key"
    assert motet("--service", "prod", "nodes").code == 0
    assert motet("use", "prod").code == 0
    assert motet("admin", "tenants").code == 0
    assert motet("logout").code == 0
    nobody = motet("tasks")
    assert (nobody.code, nobody.err.count("\n")) == (3, 1)
    assert "motet login" in nobody.err
    for words, says in (
        (("use", "gone"), "motet login URL --name gone"),
        (("--service", "gone", "tasks"), "known are test, local"),
    ):
        assert says in motet(*words).err


def test_a_keyring_that_others_may_read_or_is_damaged_is_not_used(motet):
    path = keyring.keyring_file()
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    path.chmod(0o644)
    assert "chmod 600" in motet("tasks").err
    path.chmod(0o600)
    assert "is damaged" in motet("services").err


def test_a_dry_run_estimates_and_leaves_nothing(known):
    said = known("submit", "spec.yaml", "--dry-run", "--json")
    assert (said.code, said.json["estimate"]["jobs"], len(said.json["jobs"])) == (0, 2, 2)
    assert said.json["jobs"][0]["rank"] == 8
    told = known("estimate", "spec.yaml")
    assert "lr 0.001" in told.out
    assert "when a node joins" in told.out
    assert (known("files", "--json").json, known("tasks", "--json").json) == ([], [])


def test_a_task_from_its_submission_to_its_deletion(known):
    task = known("submit", "spec.yaml", "--json")
    assert "uploaded rows.jsonl: 20 rows" in task.err, "progress stays off standard output"
    id = task.json["id"]
    assert [one["id"] for one in known("tasks", "--json", "--label", "team=speech").json] == [id]
    assert known("tasks", "--json", "--label", "team=vision").json == []
    assert id in known("tasks").out
    assert [job["index"] for job in known("jobs", "last", "--json").json] == [0, 1]
    assert known("delete", id).code == 1
    assert known("pause", "last").code == 0
    assert known("cancel", "last", "--json").json["status"] == "cancelled"
    assert "already cancelled" in known("resume", id).err
    watched = known("watch", id, "--json")
    assert (watched.code, json.loads(watched.out.splitlines()[-1])["status"]) == (1, "cancelled"), "it did not succeed"
    events = [json.loads(line) for line in known("events", id, "--json").out.splitlines()]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert "the task is cancelled" in known("logs", id).out
    other = known("submit", "spec.yaml", "--json").json["id"]
    compared = known("compare", id, other).out
    assert "losses can be compared" in compared
    assert "specs are the same" in compared, "their files are two of the same bytes"
    assert "has no winner yet: it is" in known("download", other, "-o", "x").err
    known("cancel", other)
    assert "has no winner: it is cancelled" in known("download", other, "-o", "x").err
    third = known("submit", "spec.yaml", "--json").json["id"]
    known("cancel", third)
    partly = known("delete", "last", "last", "--json")
    assert (partly.code, partly.json) == (1, {"deleted": [third]}), "what is gone is told, and both were the newest"
    assert third in partly.err
    assert known("delete", id, other, "--json").json == {"deleted": [id, other]}
    assert known("files", "--unused", "--delete").code == 0
    assert known("files", "--json").json == []
    assert known("files", "--delete").code == 2
    assert [one["rows"] for one in known("files", "--upload", "rows.jsonl", "--json").json] == [20]
    assert known("adapters", "--json").json == []


def test_what_was_used_and_who_did_what(known):
    known("submit", "spec.yaml")
    used = known("usage", "--json").json
    assert used["usage"]["total"]["trained_tokens"] == 0
    assert used["quotas"]["queued_tasks"]["used"] == 1
    assert "waiting tasks" in known("usage").out
    assert known("usage", "--month", "2026-13").code == 2
    assert [one["action"] for one in known("admin", "audit", "--json", "--action", "create_task", "-n", "1").json] == [
        "create_task"
    ]


def test_an_admin_makes_tenants_and_keys_and_drains_nodes(known):
    made = known("admin", "tenant", "a-team", "--queued-tasks", "7", "--json").json
    assert (made["quotas"]["queued_tasks"], made["weight"]) == (7, 1.0)
    changed = known("admin", "tenant", "a-team", "--weight", "2", "--running-gpus", "3", "--json").json
    assert (changed["id"], changed["weight"]) == (made["id"], 2.0)
    assert (changed["quotas"]["queued_tasks"], changed["quotas"]["running_gpus"]) == (7, 3), "what is not named stays"
    key = known("admin", "key", "a-team", "ci", "--scope", "read", "--json").json
    assert key["scopes"] == ["read"]
    assert key["secret"]
    assert [one["id"] for one in known("admin", "keys", "a-team", "--json").json] == [key["id"]]
    assert known("admin", "revoke", key["id"], "--json").json["revoked_at"]
    assert known("admin", "join-token", "gpu-7", "--json").json["node_name"] == "gpu-7"
    assert "`motet nodes` lists them" in known("admin", "drain", "nobody").err
    assert "`motet admin tenants` lists them" in known("admin", "keys", "nobody").err


def test_an_admin_removes_a_node_that_is_away(known, database):
    with database.begin() as session:
        said = {"boot_id": "b", "status": "lost", "devices": [], "versions": {}, "credential_hash": b""}
        session.add(Node(id=new_id("node"), name="scaled-in", **said))
    removed = known("admin", "remove-node", "scaled-in", "--json")
    assert removed.code == 0, removed.err
    assert removed.json["name"] == "scaled-in"
    assert "there is no node 'scaled-in'" in known("admin", "remove-node", "scaled-in").err


def test_an_admin_sets_prices_and_takes_them_back(known):
    made = known("admin", "price", "NVIDIA H100 80GB HBM3", "2.5", "--from-day", "2026-03-01", "--json").json
    assert (made["device_type"], made["from_day"], made["per_hour"]) == ("NVIDIA H100 80GB HBM3", "2026-03-01", 2.5)
    today = known("admin", "price", "L4 & co", "0.7", "--json").json
    listed = known("admin", "prices", "--json").json
    assert listed["data"] == [today, made]
    assert re.search(r"NVIDIA H100 80GB HBM3 +2026-03-01 +2\.5", known("admin", "prices").out)
    assert known("admin", "price", "L4 & co", "-1").code == 2
    assert known("admin", "remove-price", "L4 & co", "yesterday").code == 2
    assert "2026-01-01" in known("admin", "remove-price", "L4 & co", "2026-01-01").err
    for one in (today, made):
        assert known("admin", "remove-price", one["device_type"], one["from_day"], "--json").json == one
    assert known("admin", "prices", "--json").json["data"] == []


def test_the_fleet_is_drawn(known):
    assert known("cluster").code == 0
    assert known("schedule", "--json").json["nodes"] == []
    assert "small" in [one["name"] for one in known("models", "--json").json]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nothing",), 2, "No such command 'nothing'"),
        (("tasks", "--nope"), 2, "`motet tasks --help`"),
        (("delete",), 2, "Missing argument"),
        (("tasks", "--limit", "0"), 2, "--limit"),
        (("tasks", "--label", "x"), 2, "KEY=VALUE"),
        (("submit", "nowhere.yaml"), 2, "there is no file nowhere.yaml"),
        (("watch", "task_x"), 1, "There is no task 'task_x'"),
        (("watch", "last"), 1, "there is no task yet"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_do(known, words, code, says):
    ended = known(*words)
    assert (ended.code, ended.err.count("\n"), ended.out) == (code, 1, "")
    assert ended.err.startswith("motet: ")
    assert says in ended.err


def test_a_refusal_is_json_for_a_program_that_asked_for_json(known):
    ended = known("jobs", "task_x", "--json")
    assert (ended.code, ended.out) == (1, "")
    assert json.loads(ended.err)["error"]["code"] == "not_found"


def test_a_shell_completes_commands_and_tasks(known, monkeypatch):
    id = known("submit", "spec.yaml", "--json").json["id"]
    monkeypatch.setenv("_MOTET_COMPLETE", "complete_bash")
    for typed, offered in (("motet ev", "events"), ("motet admin dr", "drain"), (f"motet watch {id[:-1]}", id)):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
        assert offered in known().out.split()


def test_an_adapter_is_uploaded_and_listed(known, toy, home):
    folder = home / "peft"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors()))
    made = known("adapters", "upload", "peft", "--base", "toy", "--name", "mine", "--json").json
    assert (made["base_model"], made["name"], made["settings"]["rank"]) == ("toy", "mine", 2)
    assert [one["id"] for one in known("adapters", "--json").json] == [made["id"]]
    assert "uploaded: mine" in known("adapters").out
    assert "is not on the list of base models" in known("adapters", "upload", "peft", "--base", "none").err
    assert known("adapters", "upload", "peft").code == 2
    assert known("delete", made["id"]).code == 0
