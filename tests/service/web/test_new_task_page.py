"""A new task in a real browser: upload, form, preview, with and without scripts."""

import json
import re
from datetime import UTC, datetime, timedelta

from service.fleet.models import BaseModel
from tests.service.api import chat_rows, jsonl
from tests.service.web.page_samples import focused

ROOT_MODEL = "examples/base-model"


def jsonl_file(tmp_path, name="rows.jsonl", rows=30):
    path = tmp_path / name
    path.write_bytes(jsonl(*chat_rows(rows)))
    return path


def test_a_task_is_made_on_an_uploaded_file(visitor, tenant, tmp_path):
    page = visitor.open("/tasks/new")
    page.set_input_files("#upload-file", jsonl_file(tmp_path))
    page.wait_for_selector("#upload [role=status]:has-text('30 rows')")
    page.fill("[name='search_space.learning_rate']", "1e-4 3e-4")
    page.fill("[name='search_space.rank']", "4, 8, 16")
    page.fill("[name='search_space.batch_size']", "4")
    page.fill("[name='training.max_seq_len']", "64")
    page.wait_for_selector("#job-count:has-text('6 jobs')")
    page.wait_for_selector("#outcome >> text=GPU time")
    page.fill("[name='search_space.rank']", "4, eight")
    page.wait_for_selector("[id='e-search_space.rank']:has-text('eight')")
    page.wait_for_selector("[id='f-search_space.rank'][aria-invalid=true]")
    page.fill("[name='search_space.rank']", "4, 9999")
    page.wait_for_selector("[id='e-search_space.rank']:has-text('256')")
    page.fill("[name='search_space.rank']", "4")
    page.wait_for_selector("#job-count:has-text('2 jobs')")
    page.wait_for_selector("[id='f-search_space.rank']:not([aria-invalid])")
    page.fill("[name=deadline]", "next week")
    page.wait_for_selector("#e-deadline:has-text('date')")
    page.fill("[name=deadline]", "2026-12-31T18:00")
    page.wait_for_selector("#e-deadline:has-text('zone')")
    deadline = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
    page.fill("[name=deadline]", deadline.isoformat())
    page.fill("[name=name]", "from the form")
    page.fill("[name=labels]", "team=research")
    page.wait_for_selector("#copy-YAML >> text=team: research", state="attached")
    page.wait_for_timeout(5000)  # longer than lists wait between two reads: the form's page is not read again behind one's back
    yaml = page.text_content("#copy-YAML")
    curl = page.text_content("#copy-curl")
    body = json.loads(re.search(r"-d '(.*)'$", curl, re.DOTALL)[1])
    assert body["search_space"]["rank"] == [4]
    assert "rank:\n  - 4" in yaml
    compile(page.text_content("#copy-Python"), "copy", "exec")
    visitor.follow("text=Submit", to="**/tasks/task_*")
    made = tenant.get("/v1/tasks").json()["data"][0]
    assert (made["name"], made["labels"]) == ("from the form", {"team": "research"})
    assert made["spec"]["search_space"]["learning_rate"] == body["search_space"]["learning_rate"] == [0.0001, 0.0003]
    assert datetime.fromisoformat(made["spec"]["deadline"]) == deadline
    again = visitor.open(f"/tasks/new?like={made['id']}")
    assert again.input_value("[name='search_space.learning_rate']") == "0.0001, 0.0003"


def test_the_form_asks_for_scored_texts(visitor, tenant, tmp_path):
    page = visitor.open("/tasks/new")
    assert not page.is_checked("[name=evaluation]")
    page.set_input_files("#upload-file", jsonl_file(tmp_path))
    page.fill("[name='training.max_seq_len']", "64")
    page.wait_for_selector("#outcome >> text=GPU time")
    assert "evaluation" not in page.text_content("#copy-YAML")
    page.check("[name=evaluation]")
    page.uncheck("[name=metrics][value=rouge_l]")
    page.wait_for_selector("[id='e-evaluation.metrics']:has-text('must not be empty')")
    page.check("[name=metrics][value=exact_match]")
    page.fill("[name='evaluation.max_prompts']", "5000")
    page.wait_for_selector("[id='e-evaluation.max_prompts']:has-text('1024')")
    page.fill("[name='evaluation.max_prompts']", "5")
    page.wait_for_selector("#copy-YAML >> text=exact_match", state="attached")
    asked = {"metrics": [{"type": "exact_match"}], "max_prompts": 5}
    assert json.loads(re.search(r"-d '(.*)'$", page.text_content("#copy-curl"), re.DOTALL)[1])["evaluation"] == asked
    assert "exact_match" in page.text_content("#copy-Python")
    visitor.follow("text=Submit", to="**/tasks/task_*")
    made = tenant.get("/v1/tasks").json()["data"][0]
    assert made["spec"]["evaluation"]["max_prompts"] == 5
    again = visitor.open(f"/tasks/new?like={made['id']}")
    assert again.is_checked("[name=evaluation]")
    assert again.locator("[name=metrics]:checked").evaluate_all("all => all.map(one => one.value)") == ["exact_match"]
    assert again.input_value("[name='evaluation.max_prompts']") == "5"


def test_wrong_rows_are_named_by_line(visitor, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_bytes(jsonl(*chat_rows(3)) + b'{"prompt": 5}\n')
    page = visitor.open("/files")
    page.set_input_files("#upload-file", path)
    page.wait_for_selector("#upload li:has-text('line 4, prompt: ')")
    path.write_bytes(jsonl(*chat_rows(3)) + b'{"prompt": "cut\n')
    page.set_input_files("#upload-file", path)
    page.wait_for_selector("#upload li:has-text('line 4 is not JSON: Unterminated string starting at column 12')")
    assert page.locator("#upload [role=status]").inner_text().count("Unterminated") == 1
    path.write_bytes(b"")
    page.set_input_files("#upload-file", path)
    page.wait_for_selector("#upload li:has-text('file holds no rows')")
    assert page.text_content("#upload .error") == "broken.jsonl was not uploaded: nothing was kept."
    visitor.expected("422")


def test_a_wrong_form_says_what_to_mend_and_keeps_what_was_typed(visit, tenant):
    visitor = visit(java_script_enabled=False)
    visitor.sign_in(tenant.key)
    page = visitor.open("/tasks/new")
    page.fill("[name='search_space.learning_rate']", "fast")
    page.fill("[name=name]", "kept")
    visitor.follow("text=Submit")
    assert "'fast' is no number" in page.text_content("#outcome")
    assert page.input_value("[name=name]") == "kept"
    assert "choose a file, or upload one" in page.text_content("#outcome")
    focused(page, "dataset.file_id")  # the first on the page that is wrong
    visitor.expected("422")


def test_without_scripts_a_file_is_uploaded_and_a_task_made_of_it(visit, tenant, tmp_path):
    visitor = visit(java_script_enabled=False)
    visitor.sign_in(tenant.key)
    page = visitor.open("/files")
    page.set_input_files("input[type=file]", jsonl_file(tmp_path))
    visitor.follow("text=Upload", to="**/tasks/new?file=*")
    page.fill("[name='training.max_seq_len']", "64")
    visitor.follow("text=Estimate")
    assert "16 jobs" in page.text_content("#outcome")
    visitor.follow("text=Submit", to="**/tasks/task_*")


def test_a_preview_marks_what_is_learned(visitor, database, tmp_path, pytestconfig):
    with database.begin() as session:
        session.add(
            BaseModel(
                name="example",
                source=str(pytestconfig.rootpath / ROOT_MODEL),
                revision="b" * 64,
                architecture="LlamaForCausalLM",
                parameters=7_000_000,
                max_position=1024,
            )
        )
    page = visitor.open("/tasks/new")
    page.select_option("[name=base_model]", "example")
    page.set_input_files("#upload-file", jsonl_file(tmp_path))
    page.wait_for_selector("#upload [role=status]:has-text('30 rows')")
    page.click("text=Preview its rows")
    page.wait_for_selector("#preview mark")
    assert "line 1" in page.text_content("#preview")
    assert "1" in "".join(page.locator("#preview mark").all_text_contents())


def test_an_estimate_that_did_not_come_is_told_of_and_asked_for_again(visitor, tenant):
    file = tenant.file()
    page = visitor.open(f"/tasks/new?file={file}")
    page.wait_for_selector("#job-count:has-text('16 jobs')")
    page.route("**/tasks/new/estimate", lambda route: route.fulfill(status=503), times=1)
    page.fill("[name='search_space.rank']", "8")
    page.wait_for_selector("#connection:has-text('does not answer')")
    page.wait_for_selector("#job-count:has-text('8 jobs')")
    assert page.is_hidden("#connection")
    visitor.expected("503")
