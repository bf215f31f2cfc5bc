"""Which files come with a base of the hub, and which of them may change while tasks train on it."""

import json

from service.fleet.base_models.base_refs import base_ref
from service.fleet.models import BaseModel
from tests.service.api import chat_rows
from tests.service.fleet.hub_models.conftest import add


def test_another_tokenizer_does_not_change_under_tasks(admin, hub):
    folder = hub.add("org/retold", commit="1" * 40)
    assert add(admin, "org/retold").status_code == 201
    task = admin.task(base_model="org/retold")
    (folder / "tokenizer_config.json").write_text("{}")
    held = json.loads((folder / "hub.json").read_text())
    (folder / "hub.json").write_text(json.dumps(held | {"commits": {"main": "2" * 40}}))
    answer = add(admin, "org/retold")
    assert (answer.status_code, answer.json()["code"]) == (409, "revision_in_use")
    admin.post(f"/v1/tasks/{task['id']}/cancel")
    assert add(admin, "org/retold").json()["commit"] == "2" * 40


def test_a_licence_is_fetched_and_may_come_under_tasks(admin, hub):
    folder = hub.add("org/licensed", commit="1" * 40)
    assert add(admin, "org/licensed").status_code == 201
    admin.task(base_model="org/licensed")
    for name in ("LICENSE", "NOTICE", "tokenizer.model"):
        (folder / name).write_text(f"the {name}")
    answer = add(admin, "org/licensed")
    assert answer.status_code == 201, answer.text
    assert {"LICENSE", "NOTICE", "tokenizer.model"} <= {file["path"] for file in answer.json()["files"]}


def test_a_template_for_tools_comes_with_the_base(admin, tenant, hub, database):
    folder = hub.add("org/with-tools")
    (folder / "additional_chat_templates").mkdir()
    template = "{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(template)
    for name in ("of-ours.txt", "two words.jinja"):
        (folder / "additional_chat_templates" / name).write_text("not read")
    made = add(admin, "org/with-tools").json()
    nested = [file["path"] for file in made["files"] if "/" in file["path"]]
    assert nested == ["additional_chat_templates/tool_use.jinja"]
    with database.begin() as session:
        ref = base_ref(session, session.get_one(BaseModel, "org/with-tools"), made["revision"], "bf16")
    assert {file.path for file in ref.files} == {file["path"] for file in made["files"]}
    assert admin.post("/v1/admin/models", json={"name": "a-folder", "source": str(folder)}).status_code == 201
    tools = [{"type": "function", "function": {"name": "look", "description": "look", "parameters": {}}}]
    file = tenant.file([row | {"tools": tools} for row in chat_rows(2)])
    said = [
        tenant.post("/v1/files/preview", json={"file_id": file, "base_model": name}) for name in ("org/with-tools", "a-folder")
    ]
    assert said[0].status_code == 200, said[0].text
    assert said[0].json()["rows"] == said[1].json()["rows"]
