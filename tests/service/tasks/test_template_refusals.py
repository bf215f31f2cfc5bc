"""Tasks whose rows the base's chat template cannot write are refused as they are posted, not by the worker."""

import json
from pathlib import Path

import pytest

from service.fleet.base_models.model_catalog import read_folder
from service.fleet.models import BaseModel
from tests.service.api import chat_rows
from tests.service.fleet.test_model_catalog import CONFIG, TEMPLATE, weights
from tests.service.tasks.test_refused_specs import refusals

TOOL = {"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {}}}
TOOLS = "{{ tools | tojson }}" + TEMPLATE
PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "Rain?"}]},
    "preferred_output": [{"role": "assistant", "content": "No."}],
    "non_preferred_output": [{"role": "assistant", "content": "Yes."}],
}


@pytest.fixture
def base(admin, tmp_path):
    """Allows a base with these files beside its weights; the last name wins."""

    def allowed(files: dict[str, str]) -> str:
        content = {"config.json": json.dumps(CONFIG), "tokenizer.json": "{}"} | files
        for path, text in content.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        (tmp_path / "model.safetensors").write_bytes(weights((2, 3)))
        assert admin.post("/v1/admin/models", json={"name": "told", "source": str(tmp_path)}).status_code == 201
        return "told"

    return allowed


def with_tools(rows: int, *lines: int) -> list[dict[str, object]]:
    return [row | ({"tools": [TOOL]} if at in lines else {"tools": []}) for at, row in enumerate(chat_rows(rows), 1)]


def refused(tenant, file: str, model: str, **more: object) -> dict[str, str]:
    return refusals(tenant.post("/v1/tasks", json=tenant.spec(file, base_model=model, **more)))


def test_rows_with_tools_on_a_template_that_writes_none(tenant, base):
    model, plain, tools = base({"chat_template.jinja": TEMPLATE}), tenant.file(with_tools(4)), tenant.file(with_tools(5, 3, 4))
    assert refused(tenant, tools, model)["dataset.file_id"] == (
        "has tools in line 3, but no chat template of told writes them, so they cannot be learned; take tools out of the "
        "rows, or take a base whose template writes them"
    )
    said = refused(tenant, plain, model, dataset={"file_id": plain, "validation_file_id": tools})
    assert "line 3" in said["dataset.validation_file_id"]
    asked = {"file_id": tools, "metrics": [{"type": "exact_match"}]}
    assert "line 3" in refused(tenant, plain, model, evaluation=asked)["evaluation.file_id"]
    assert tenant.post("/v1/tasks", json=tenant.spec(plain, base_model=model)).status_code == 201


def test_lines_are_those_of_the_stored_file(tenant, base):
    lines = [json.dumps(row) for row in with_tools(4, 3)]
    model, file = base({"chat_template.jinja": TEMPLATE}), tenant.upload("\n\n".join(lines).encode()).json()["id"]
    assert "has tools in line 3," in refused(tenant, file, model)["dataset.file_id"]


def test_preferences_with_tools(tenant, base):
    asked = PREFERENCE["input"] | {"tools": [TOOL]}
    file, model = tenant.file([PREFERENCE, PREFERENCE | {"input": asked}]), base({"chat_template.jinja": TEMPLATE})
    said = refused(tenant, file, model, objective={"type": "dpo"})
    assert "has tools in line 2," in said["dataset.file_id"]


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": TOOLS},
        {"chat_template.jinja": TEMPLATE, "additional_chat_templates/tool_use.jinja": TOOLS},
        {"tokenizer_config.json": json.dumps({"chat_template": TOOLS})},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "tool_use", "template": TOOLS}]})},
        {"tokenizer_config.json": "not JSON"},
    ],
)
def test_a_template_that_may_write_tools_refuses_none(tenant, base, files):
    file = tenant.file(with_tools(4, 1))
    assert tenant.post("/v1/tasks", json=tenant.spec(file, base_model=base(files))).status_code == 201


def test_chats_on_a_base_without_a_template(tenant, base):
    model, file = base({}), tenant.file(chat_rows(4))
    assert "told has no chat template; use rows of prompt and completion" in refused(tenant, file, model)["dataset.file_id"]
    pairs = tenant.file([{"prompt": f"{n}", "completion": "a"} for n in range(4)])
    assert tenant.post("/v1/tasks", json=tenant.spec(pairs, base_model=model)).status_code == 201


def test_a_base_that_is_allowed_again_is_read_again(tenant, base):
    file, model = tenant.file(with_tools(4, 2)), base({"chat_template.jinja": TEMPLATE})
    refused(tenant, file, model)
    base({"chat_template.jinja": TOOLS})
    assert tenant.post("/v1/tasks", json=tenant.spec(file, base_model=model)).status_code == 201


def test_nothing_is_refused_where_nobody_has_looked(tenant, small_model):
    """Of a base that a version before allowed."""
    file = tenant.file(with_tools(4, 1))
    assert tenant.post("/v1/tasks", json=tenant.spec(file, base_model=small_model)).status_code == 201


def test_the_example_base_is_known_to_write_no_tools():
    row: BaseModel = read_folder("example", str(Path("examples/base-model").resolve()))
    assert row.template_kind == "plain"
