"""New task, compare, cluster, usage, files, adapters, keys, webhooks, admin and the API reference, in a real browser."""

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta

from service.fleet.models import BaseModel, Placement
from service.tasks.models import Task
from service.web.views.api_reference import operations
from tests.browser import eventually
from tests.service.api import chat_rows, jsonl
from tests.service.sample_tasks import adapter, jobs_of, placement
from tests.service.web import sweeps

FOLDER = {"adapter_model.safetensors": b"x" * 10, "adapter_config.json": b"{}"}
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
    page.click("text=Submit")
    page.wait_for_url("**/tasks/task_*")
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
    page.wait_for_selector("[id='e-evaluation.metrics']:has-text('at least 1')")
    page.check("[name=metrics][value=exact_match]")
    page.fill("[name='evaluation.max_prompts']", "5000")
    page.wait_for_selector("[id='e-evaluation.max_prompts']:has-text('1024')")
    page.fill("[name='evaluation.max_prompts']", "5")
    page.wait_for_selector("#copy-YAML >> text=exact_match", state="attached")
    asked = {"metrics": [{"type": "exact_match"}], "max_prompts": 5}
    assert json.loads(re.search(r"-d '(.*)'$", page.text_content("#copy-curl"), re.DOTALL)[1])["evaluation"] == asked
    assert "exact_match" in page.text_content("#copy-Python")
    page.click("text=Submit")
    page.wait_for_url("**/tasks/task_*")
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
    page.click("text=Submit")
    assert "'fast' is no number" in page.text_content("#outcome")
    assert page.input_value("[name=name]") == "kept"
    assert page.evaluate("document.activeElement.name") == "search_space.learning_rate"
    visitor.expected("422")


def test_without_scripts_a_file_is_uploaded_and_a_task_made_of_it(visit, tenant, tmp_path):
    visitor = visit(java_script_enabled=False)
    visitor.sign_in(tenant.key)
    page = visitor.open("/files")
    page.set_input_files("input[type=file]", jsonl_file(tmp_path))
    page.click("text=Upload")
    page.wait_for_url("**/tasks/new?file=*")
    page.fill("[name='training.max_seq_len']", "64")
    page.click("text=Estimate")
    assert "16 jobs" in page.text_content("#outcome")
    page.click("text=Submit")
    page.wait_for_url("**/tasks/task_*")


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


def test_tasks_beside_each_other(visitor, tenant, database):
    tasks = []
    for number, rate in enumerate((1e-4, 1e-3)):
        space = {"learning_rate": [rate, 2 * rate], "rank": [4], "batch_size": [4]}
        tasks.append(tenant.task(name=f"sweep {number}", search_space=space)["id"])
        sweeps.begin(database, tasks[-1])
    page = visitor.open("/tasks")
    for task in tasks:
        page.check(f"input[value={task}]")
    page.click("text=Compare the chosen")
    page.wait_for_url("**/compare?*")
    page.wait_for_selector("html[data-drawn]")
    assert page.locator("main table").first.locator("tbody tr").count() == 2
    assert "search_space.learning_rate" in page.text_content("main")
    eventually(page, "document.querySelector('#plot canvas').width > 300")
    assert "differ in dataset" not in page.text_content("#comparable")
    assert "the same validation rows" in page.text_content("#comparable")
    assert "file_id" not in page.text_content("main"), "two uploads of the same bytes"
    other = tenant.task(dataset={"file_id": tenant.file(chat_rows(30)), "validation_fraction": 0.5})["id"]
    page = visitor.open(f"/compare?task={tasks[0]}&task={other}")
    assert "differ in dataset.file_id and dataset.validation_fraction." in page.text_content("#comparable")
    assert "sha256" in page.text_content("tr:has-text('dataset.file_id')")
    many = "&".join(f"task=task_{number}" for number in range(9))
    visitor.open(f"/compare?{many}")
    assert "8 can be compared" in page.text_content("main")
    visitor.expected("400")


def run_on(database, node, task, devices):
    now = datetime.now(UTC)
    with database.begin() as session:
        session.get_one(Task, task).status = "running"
        session.add(
            Placement(
                id=f"placement_{task[-10:]}",
                task_id=task,
                node_id=node.id,
                device_indexes=devices,
                fence=1,
                created_at=now - timedelta(minutes=30),
                lease_until=now + timedelta(hours=1),
                expected_end=now + timedelta(minutes=40),
            )
        )


def test_the_cluster_names_ones_own_tasks_and_everybodys_to_admins(visitor, admin_visitor, tenant, new_tenant, database, node):
    other = new_tenant()
    mine, theirs = tenant.task(name="mine")["id"], other.task(name="not to be read")["id"]
    run_on(database, node, mine, [0])
    run_on(database, node, theirs, [0, 1])
    page = visitor.open("/cluster")
    assert page.locator(f"#lanes a[href='/tasks/{mine}'] rect.t0").count() == 1
    assert page.locator("#lanes rect.others").count() == 2
    assert "not to be read" not in page.content()
    titles = page.locator("#lanes title").all_text_contents()
    assert any("mine" in title and "shares this GPU with another tenant's task" in title for title in titles)
    assert any("shares" not in title for title in titles)  # the second GPU is the other task's alone
    assert "shared with" not in page.text_content("#nodes")  # they hold different sets of GPUs
    run_on(database, node, other.task()["id"], [0])
    page = visitor.open("/cluster")
    assert "shared with 1 other task" in page.text_content("#nodes")
    page.click(f"#lanes a[href='/tasks/{mine}']")
    page.wait_for_url(f"**/tasks/{mine}")
    ruler = admin_visitor.open("/cluster")
    assert "not to be read" in ruler.content()
    assert "shares this GPU with not to be read" in ruler.content()
    row = ruler.locator(f"#nodes tr:has-text('{node.name}')")
    assert "80.0 GiB" in row.text_content()
    row.locator("text=Drain").first.click()
    ruler.wait_for_selector(f"#nodes tr:has-text('{node.name}') >> text=Undrain")


def test_usage_is_shown_and_downloaded(visitor, tenant, database):
    task = tenant.task(name="=1+1 costly")["id"]
    with database.begin() as session:
        placement(session, task, tokens=123_456, gpu_seconds=3600.0)
    page = visitor.open("/usage")
    assert "123,456" in page.text_content("main")
    assert "1 h" in page.text_content(".facts")
    assert page.locator(".days rect").count() >= 28
    assert any("1 h" in title for title in page.locator(".days title").all_text_contents())
    with page.expect_download() as download:
        page.click("text=CSV")
    (row,) = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert (row["trained_tokens"], row["gpu_seconds"], row["name"]) == ("123456", "3600.0", "'=1+1 costly")


def test_keys_are_made_shown_once_and_revoked(visitor, tenant):
    page = visitor.open("/keys")
    page.fill("form [name=name]", "laptop")
    page.click("text=Make it")
    secret = page.text_content("#secret")
    headers = {"Authorization": f"Bearer {secret}"}
    assert tenant.client.get("/v1/tasks", headers=headers).status_code == 200
    page.goto(visitor.url + "/keys")
    assert secret not in page.content()
    row = page.locator("tr:has-text('laptop')")
    assert "in 90 d" in row.text_content()
    row.locator("summary").click()
    row.locator("text=Revoke “laptop”").click()
    page.wait_for_selector("tr:has-text('laptop') >> text=revoked")


def test_a_webhook_is_refused_or_made_and_deleted(visitor):
    page = visitor.open("/webhooks")
    page.fill("[name=url]", "https://127.0.0.1/hook")
    page.fill("[name=description]", "kept")
    page.uncheck("[value='task.failed']")
    page.click("text=Make it")
    assert "MOTET_WEBHOOK_NETWORKS" in page.text_content("#e-url")
    assert (page.input_value("[name=url]"), page.input_value("[name=description]")) == ("https://127.0.0.1/hook", "kept")
    assert not page.is_checked("[value='task.failed']")
    assert page.evaluate("document.activeElement.name") == "url"
    visitor.expected("422")


def test_files_and_adapters_are_listed_and_deleted(visitor, tenant, database, storage):
    task = tenant.task(name="tiny loss")
    with database.begin() as session:
        made = adapter(session, storage, jobs_of(session, task["id"])[0], FOLDER)
        session.get_one(Task, task["id"]).winner_job_id = made.job_id
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    page = visitor.open("/adapters")
    row = " ".join(page.text_content("#rows tr").split())
    assert row.startswith(f"{made.id} (winner)tiny losslr "), row
    assert ", rank " in row
    assert page.get_attribute("a.row", "href") == f"/tasks/{task['id']}"
    with page.expect_download() as download:
        page.click("#rows >> text=Download")
    assert download.value.suggested_filename == f"{made.id}.tar.gz"
    page.click("summary")
    page.click("text=Delete it")
    page.wait_for_selector("text=No adapters yet")
    page = visitor.open("/files")
    page.click("a.row")
    assert "Its rows" in page.text_content("main h2")
    shown = page.text_content(".preview")
    assert "line 20:" in shown
    assert jsonl(*chat_rows(20)).decode().splitlines()[19] in shown
    page = visitor.open("/files")
    with page.expect_download() as download:
        page.click("#rows >> text=Download")
    assert download.value.path().read_bytes() == jsonl(*chat_rows(20))
    page.click("summary")
    page.click("text=Delete “train.jsonl”")
    page.wait_for_selector("text=No files yet")


def test_an_admin_makes_a_tenant_its_quota_and_its_key(admin_visitor, tenant):
    page = admin_visitor.open("/admin")
    name = f"team {datetime.now(UTC).timestamp()}"
    page.fill("form[action='/admin/tenants'] [name=name]", name)
    page.click("text=Make a tenant")
    page.click(f"a:has-text('{name}')")
    page.fill("[name=running_gpus]", "4")
    page.click("text=Change")
    page.wait_for_load_state()
    assert page.input_value("[name=running_gpus]") == "4"
    page.fill("[name=stored_bytes]", "plenty")
    page.click("text=Change")
    assert "stored_bytes" in page.text_content("main")
    admin_visitor.expected("422")
    page.go_back()
    page.click("text=Make a key")
    secret = page.text_content("#secret")
    made = tenant.client.get("/v1/quotas", headers={"Authorization": f"Bearer {secret}"}).json()
    assert made["running_gpus"]["limit"] == 4
    page.goto(admin_visitor.url + "/admin")
    page.fill("[name=node_name]", "gpu-9")
    page.click("text=Make a join token")
    assert len(page.text_content("#secret")) > 20
    assert "create_join_token" in page.text_content("main")


def test_every_example_of_the_reference_has_the_fields_that_it_must(app):
    for of_tag in operations(app.openapi(), "http://api").values():
        for one in of_tag:
            if (body := re.search(r"-d '(.*)' \"http", one.example)) is not None:
                assert {field.name for field in one.fields if field.required} <= json.loads(body[1]).keys(), one.id
                assert json.loads(body[1]).keys() <= {field.name for field in one.fields}, one.id


def test_the_reference_holds_every_operation(visitor, app):
    page = visitor.open("/docs")
    ids = {said["operationId"] for path in app.openapi()["paths"].values() for said in path.values()}
    shown = set(page.locator(".operation").evaluate_all("all => all.map(one => one.id)"))
    assert shown == ids
    assert "Authorization: Bearer $MOTET_API_KEY" in page.text_content("#x-list_tasks")
