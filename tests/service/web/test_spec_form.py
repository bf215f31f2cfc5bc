"""A task is posted again from its page with all that it asked for, whatever fields the form has."""

from html.parser import HTMLParser

import pytest
from pydantic import BaseModel

from contract.task_spec import TaskSpec
from service.web.views.spec_form.form_to_spec import spec_of_form
from service.web.views.spec_form.spec_to_form import choices_of, fields_of
from tests.service.api import chat_rows
from tests.service.web.test_forms import signed, words  # noqa: F401  (a fixture)

EVERYTHING = {
    "name": 'all "of" it = 1',
    "base_model": "small",
    "dataset": {"file_id": "f", "validation_file_id": "v", "validation_fraction": 0.123456789, "max_validation_rows": 77},
    "objective": {"type": "dpo", "turns": "last"},
    "search_space": {
        "method": "random",
        "n": 5,
        "draw_seed": 9,
        "learning_rate": [1.23456789e-4, 1e-3],
        "rank": [4, 8],
        "alpha": [3.5, 16.0],
        "batch_size": [2, 4],
        "seed": [1, 2],
        "dropout": [0.05],
        "weight_decay": [0.02, 0.1],
        "schedule": ["cosine", "constant"],
        "lr_warmup_ratio": [0.1, 0.0],
        "target_modules": [["v_proj", "o_proj"], ["q_proj", "v_proj"], ["q_proj"]],
        "rslora": [True, False],
        "beta": [0.1, 0.3],
    },
    "precision": "nf4_double",
    "warm_start": {"adapter_id": "adapter_1"},
    "training": {"epochs": 2, "max_steps": 50, "max_seq_len": 64, "weight_decay": 0.03, "max_grad_norm": 0.7},
    "early_exit": {
        "policy": "asha",
        "warmup_fraction": 0.2,
        "keep_fraction": 0.5,
        "ema_alpha": 0.2,
        "window": 3,
        "patience_divergence": 4,
        "patience_overfitting": 5,
        "tau_slope": 0.01,
        "tau_gap": 0.2,
        "guard_patience": 8,
        "reduction_factor": 3,
        "eval_every": 7,
        "max_evaluation_share": None,
    },
    "integrations": [{"type": "mlflow", "server": "ours", "experiment": "a = b", "tags": {"team": "x"}}],
    "evaluation": {
        "metrics": [
            {"type": "regex", "pattern": "a+=\u2028", "name": "found"},
            {"type": "chrf"},
            {"type": "json_schema", "json_schema": {"const": None}},
        ],
        "file_id": "e",
        "max_prompts": 9,
        "max_new_tokens": 33,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["\r\n\n", "=", " \u2028é"],
    },
    "select_by": "found",
    "gpus": 2,
    "max_gpus": 4,
    "max_slowdown": 1.5,
    "isolation": "dedicated",
    "priority": 7,
    "not_before": "2030-01-31T18:00:00Z",
    "deadline": "2031-01-31T18:00:00Z",
    "labels": {"team": "a=b", "odd=key": "x", "lines": "a\nb", "edge": " x"},
}
LISTED = {"learning_rate": 0.001, "rank": 4, "alpha": 2.0, "target_modules": ["q_proj"], "rslora": True}
SPECS = {
    "everything": EVERYTHING,
    "the least": {"base_model": "small", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-4]}},
    "another alpha": EVERYTHING | {"search_space": {"learning_rate": [1e-4], "alpha_ratio": [0.5, 1.0]}, "objective": {}},
    "a list of jobs": EVERYTHING
    | {"search_space": {"method": "list", "jobs": [LISTED, {"learning_rate": 0.01, "batch_size": 2}]}, "objective": {}},
}


def again(spec: dict) -> tuple[dict, dict]:
    return spec_of_form(fields_of(spec), *choices_of(spec))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_form_of_a_task_makes_its_spec_again(spec):
    asked = TaskSpec.model_validate(spec)
    for stored in (asked.model_dump(mode="json"), asked.model_dump(mode="json", exclude_unset=True)):
        made, mistakes = again(stored)
        assert not mistakes
        assert TaskSpec.model_validate(made) == asked


def test_a_number_that_a_program_computed_is_shown_as_it_was_meant():
    rates = [3.0000000000000004e-05, 0.00031622776601683794]
    space = {"learning_rate": rates, "lr_warmup_ratio": [0.1 + 0.2]}
    fields = fields_of(SPECS["the least"] | {"search_space": space})
    assert fields["search_space.learning_rate"] == "3e-05, 0.00031622776601683794"
    assert "search_space.lr_warmup_ratio=[0.3]" in fields["more"]
    twins = fields_of(SPECS["the least"] | {"search_space": {"learning_rate": [3e-05, rates[0]]}})
    assert twins["search_space.learning_rate"] == "3e-05, 3.0000000000000004e-05"


def test_the_specs_above_set_every_field():
    def unset(model: type[BaseModel], documents: list[dict], at: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            values = [one[name] for one in documents if name in one and one[name] != field.default]
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found += unset(inner, values, f"{at}{name}.")
            elif not values:
                found.append(at + name)
        return found

    assert unset(TaskSpec, list(SPECS.values()), "") == []


def test_a_field_of_a_newer_version_is_not_dropped_but_refused():
    made, _ = again(SPECS["the least"] | {"training": {"of_tomorrow": 1}})
    with pytest.raises(ValueError, match="of_tomorrow"):
        TaskSpec.model_validate(made)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("isolation", "'isolation' is no field; write one path=value a line"),
        ("a..b=1", "is no field"),
        ("training.epochs=4", "'training.epochs' is set twice"),
        ("priority=2\npriority=3", "'priority' is set twice"),
        ("training.epochs.x=4", "'training.epochs.x' is set twice"),
        ('warm_start={"adapter_id": "a", "adapter_id": "b"}', "'warm_start' has the key 'adapter_id' twice in one object"),
        ('x={"b": {"c": 1, "c": 2}}\npriority=2', "'x' has the key 'c' twice in one object"),
        ("training.max_grad_norm=NaN", "'training.max_grad_norm' holds NaN, which is not JSON"),
    ],
)
def test_lines_of_more_that_cannot_be(more, said):
    _, mistakes = spec_of_form({"training.epochs": "3", "more": more}, [], [])
    assert said in mistakes["more"]


def test_a_metric_with_a_key_twice_is_refused():
    metrics = ['{"type": "regex", "pattern": "a", "pattern": "b"}', "exact_match"]
    _, mistakes = spec_of_form({"evaluation": "1"}, [], [], metrics)
    assert "has the key 'pattern' twice in one object" in mistakes["evaluation.metrics"]


def test_a_label_that_is_set_twice_is_refused():
    _, mistakes = spec_of_form({"labels": "a=b\nteam=x\na =c"}, [], [])
    assert mistakes["labels"] == "'a': set twice; leave one line of each"


def test_nesting_too_deep_for_json_is_text():
    spec, mistakes = spec_of_form({"more": f"isolation={'[' * 100_000}", "evaluation": "1"}, [], [], ["{" + "[" * 100_000])
    assert isinstance(spec["isolation"], str)
    assert "is no JSON" in mistakes["evaluation.metrics"]


class Sent(HTMLParser):
    """What a browser sends of the page's new-task form."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: list[tuple[str, str]] = []
        self._select = self._text = None
        self.feed(page.split('id="new-task"')[1].split("</form>")[0])

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        if tag == "select":
            self._select, self._options = said["name"], []
        elif tag == "option":
            self._options.append((said, ""))
        elif tag == "textarea":
            self._text = [said["name"], ""]
        elif tag == "input" and (said.get("type") != "checkbox" or "checked" in said):
            self.fields.append((said["name"], said.get("value", "")))

    def handle_data(self, data):
        if self._text is not None:
            self._text[1] += data
        elif self._select is not None and self._options:
            said, words = self._options[-1]
            self._options[-1] = said, words + data

    def handle_endtag(self, tag):
        if tag == "select":
            chosen = next((one for one in self._options if "selected" in one[0]), self._options[0])
            self.fields.append((self._select, chosen[0].get("value", chosen[1])))
            self._select = None
        elif tag == "textarea":
            self.fields.append((self._text[0], self._text[1].removeprefix("\n")))
            self._text = None

    def by_name(self) -> dict[str, list[str]]:
        return {name: [value for known, value in self.fields if known == name] for name, _ in self.fields}


def test_do_it_again_posts_the_same_spec(signed, tenant):  # noqa: F811
    assert tenant.post("/v1/tracking-servers", json={"name": "ours", "url": "https://1.1.1.1/"}).status_code == 201
    files = {"file_id": tenant.file(), "validation_file_id": tenant.file(chat_rows(9)[5:])}
    evaluation = EVERYTHING["evaluation"] | {"file_id": tenant.file()}
    spec = EVERYTHING | {"dataset": EVERYTHING["dataset"] | files, "evaluation": evaluation, "objective": {"turns": "last"}}
    spec["search_space"] = {name: value for name, value in spec["search_space"].items() if name != "beta"}
    posted = tenant.post("/v1/tasks", json={name: value for name, value in spec.items() if name != "warm_start"})
    assert posted.status_code == 201, posted.text
    first = posted.json()
    fields = Sent(signed.get(f"/tasks/new?like={first['id']}").text).by_name()
    answer = signed.post("/tasks/new", **{name: values for name, values in fields.items() if name != "csrf"})
    assert answer.status_code == 303, words(answer)
    second = tenant.get(answer.headers["location"].replace("/tasks/", "/v1/tasks/")).json()
    assert second["id"] != first["id"]
    assert TaskSpec.model_validate(second["spec"]) == TaskSpec.model_validate(first["spec"])


def test_a_choice_that_is_gone_stays_and_is_refused(signed, tenant):  # noqa: F811
    first = tenant.task(dataset={"file_id": tenant.file(), "validation_file_id": (gone := tenant.file(chat_rows(9)[5:]))})
    tenant.post(f"/v1/tasks/{first['id']}/cancel")
    assert tenant.delete(f"/v1/files/{gone}").status_code == 204
    fields = Sent(signed.get(f"/tasks/new?like={first['id']}").text).by_name()
    assert fields["dataset.validation_file_id"] == [gone]
    answer = signed.post("/tasks/new", **{name: values for name, values in fields.items() if name != "csrf"})
    assert answer.status_code == 422
    assert "Validation file (dataset.validation_file_id): " in words(answer)
