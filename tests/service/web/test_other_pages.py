"""Compare, cluster, usage, files, adapters, keys, webhooks, admin and the API reference, in a real browser."""

import csv
import io
from datetime import UTC, datetime

from service.fleet.models import Node
from service.merges.models import READY, MergedModel
from service.tasks.models import Task
from service.usage.models import CompletionUsage
from tests.browser import eventually
from tests.service.adapters.adapter_uploads import safetensors, tensors, upload
from tests.service.api import chat_rows, jsonl
from tests.service.sample_tasks import adapter, jobs_of, placement
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, focused, run_on


def test_tasks_beside_each_other(visitor, tenant, database):
    tasks = []
    for number, rate in enumerate((1e-4, 1e-3)):
        space = {"learning_rate": [rate, 2 * rate], "rank": [4], "batch_size": [4]}
        tasks.append(tenant.task(name=f"sweep {number}", search_space=space)["id"])
        sweeps.begin(database, tasks[-1])
    page = visitor.open("/tasks")
    for task in tasks:
        page.check(f"input[value={task}]")
    visitor.follow("text=Compare the chosen", to="**/compare?*")
    page.wait_for_selector("html[data-drawn]")
    assert page.locator("main table").first.locator("tbody tr").count() == 2
    assert "search_space.learning_rate" in page.text_content("main")
    eventually(page, "document.querySelector('#plot canvas').width > 300")
    assert "differ in dataset" not in page.text_content("#comparable")
    assert "the same validation rows" in page.text_content("#comparable")
    assert "file_id" not in page.text_content("main"), "two uploads of the same bytes"
    assert page.locator("#trend-rows").count() == 0
    with database.begin() as session:
        task = session.get_one(Task, tasks[1])
        task.validation_rows, task.trend_rows = 16, 9
    page = visitor.open(f"/compare?task={tasks[0]}&task={tasks[1]}")
    said = page.text_content("#trend-rows")
    assert said.startswith("Each validation point of sweep 1 reads the first 9 of its 16 validation rows.")
    assert "sweep 0" not in said
    other = tenant.task(dataset={"file_id": tenant.file(chat_rows(30)), "validation_fraction": 0.5})["id"]
    page = visitor.open(f"/compare?task={tasks[0]}&task={other}")
    assert "differ in dataset.file_id and dataset.validation_fraction." in page.text_content("#comparable")
    assert "sha256" in page.text_content("tr:has-text('dataset.file_id')")
    many = "&".join(f"task=task_{number}" for number in range(9))
    visitor.open(f"/compare?{many}")
    assert "8 can be compared" in page.text_content("main")
    visitor.expected("400")


def test_the_cluster_names_ones_own_tasks_and_everybodys_to_admins(
    nothing_left, visitor, admin_visitor, tenant, new_tenant, database, node
):
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
    for _ in range(30):
        page.keyboard.press("Tab")
        if "another tenant's task · since" in page.text_content("#told"):
            break
    assert page.evaluate("document.activeElement.matches('rect.others')")
    page.locator("#lanes rect.t0").hover()
    assert page.text_content("#told").startswith("mine · since")
    visitor.follow(f"#lanes a[href='/tasks/{mine}']", to=f"**/tasks/{mine}")
    ruler = admin_visitor.open("/cluster")
    assert "not to be read" in ruler.content()
    assert "shares this GPU with not to be read" in ruler.content()
    row = ruler.locator(f"#nodes tr:has-text('{node.name}')")
    assert "80.0 GiB" in row.text_content()
    admin_visitor.follow(row.locator("text=Drain").first)
    ruler.wait_for_selector(f"#nodes tr:has-text('{node.name}') >> text=Undrain")


def test_an_admin_removes_a_node_that_is_away_from_the_cluster(admin_visitor, database, node):
    row = f"#nodes tr:has-text('{node.name}')"
    assert admin_visitor.open("/cluster").locator(f"{row} >> text=Remove").count() == 0
    with database.begin() as session:
        session.get_one(Node, node.id).status = "lost"
    page = admin_visitor.open("/cluster")
    admin_visitor.follow(f"{row} >> text=Remove")
    page.wait_for_selector(row, state="detached")
    with database.begin() as session:
        assert session.get_one(Node, node.id).removed_at is not None


def test_a_deleted_tasks_use_stays_and_leads_nowhere(visitor, tenant, database):
    task = tenant.task(name="gone")["id"]
    with database.begin() as session:
        placement(session, task, tokens=100, gpu_seconds=1.0)
        session.get_one(Task, task).deleted_at = datetime.now(UTC)
    page = visitor.open("/usage")
    assert "gone deleted" in " ".join(page.locator("table.list >> nth=1 >> tbody tr").inner_text().split())
    assert page.locator(f"a[href='/tasks/{task}']").count() == 0


def test_usage_is_shown_and_downloaded(visitor, tenant, database):
    task = tenant.task(name="=1+1 costly")["id"]
    assert "the tallest bar" not in visitor.open("/usage").text_content("main")
    assert "Completions" not in visitor.page.text_content(".facts")
    month = datetime.now(UTC).date().replace(day=1)
    asked = {"requests": 2, "prompt_tokens": 1000, "completion_tokens": 234, "gpu_seconds": 1.0}
    with database.begin() as session:
        placement(session, task, tokens=123_456, gpu_seconds=3600.0)
        session.add(CompletionUsage(tenant_id=tenant.tenant_id, month=month, base_model="small", adapter_id="", **asked))
    page = visitor.open("/usage")
    assert "123,456" in page.text_content("main")
    assert "1,234tokens of 2 requests" in page.text_content(".facts")
    assert "124,690" in page.text_content("main"), "the quota's tokens are the sum of both"
    assert "1 h" in page.text_content(".facts")
    assert "the tallest bar is 1 h" in page.text_content("main")
    assert "By day, in UTC" in page.text_content("main")
    assert page.locator(".days rect").count() >= 28
    left = "one => one.getBoundingClientRect().left"
    begins = page.locator(".days rect").first.evaluate(left)
    assert begins - page.locator("h1").evaluate(left) < 5, "the bars begin where the page's text does"
    assert any("1 h" in title for title in page.locator(".days title").all_text_contents())
    with page.expect_download() as download:
        page.click("text=CSV")
    (row,) = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert (row["trained_tokens"], row["gpu_seconds"], row["name"]) == ("123456", "3600.0", "'=1+1 costly")


def test_keys_are_made_shown_once_and_revoked(visitor, tenant):
    page = visitor.open("/keys")
    page.fill("form [name=name]", "laptop")
    visitor.follow("text=Make it")
    secret = page.text_content("#secret")
    headers = {"Authorization": f"Bearer {secret}"}
    assert tenant.client.get("/v1/tasks", headers=headers).status_code == 200
    visitor.open("/keys")
    assert secret not in page.content()
    row = page.locator("tr:has-text('laptop')")
    assert "in 90 d" in row.text_content()
    row.locator("summary").click()
    visitor.follow(row.locator("text=Revoke “laptop”"))
    page.wait_for_selector("tr:has-text('laptop') >> text=revoked")


def test_a_webhook_is_refused_or_made_and_deleted(visitor):
    page = visitor.open("/webhooks")
    page.fill("[name=url]", "https://127.0.0.1/hook")
    page.fill("[name=description]", "kept")
    page.uncheck("[value='task.failed']")
    visitor.follow("text=Make it")
    assert "MOTET_WEBHOOK_NETWORKS" in page.text_content("#e-url")
    assert (page.input_value("[name=url]"), page.input_value("[name=description]")) == ("https://127.0.0.1/hook", "kept")
    assert not page.is_checked("[value='task.failed']")
    focused(page, "url")
    visitor.expected("422")


def test_an_uploaded_adapter_is_listed_without_a_task(visitor, tenant, toy):
    made = upload(tenant, safetensors(tensors()), name="from elsewhere")
    assert made.status_code == 201, made.text
    page = visitor.open("/adapters")
    row = " ".join(page.text_content("#rows tr").split())
    assert row.startswith(f"{made.json()['id']}uploaded: from elsewhererank 2, q_proj, v_proj, down_projtoy"), row
    page.click("summary:has-text('Delete')")
    visitor.follow("text=Delete it")
    page.wait_for_selector("text=No adapters yet")


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
    page.click("summary:has-text('Delete')")
    visitor.follow("text=Delete it")
    page.wait_for_selector("text=No adapters yet")
    page = visitor.open("/files")
    visitor.follow("a.row")
    assert "Its rows" in page.text_content("main h2")
    shown = page.text_content(".preview")
    assert "line 20:" in shown
    assert jsonl(*chat_rows(20)).decode().splitlines()[19] in shown
    page = visitor.open("/files")
    with page.expect_download() as download:
        page.click("#rows >> text=Download")
    assert download.value.path().read_bytes() == jsonl(*chat_rows(20))
    page.click("summary")
    visitor.follow("text=Delete “train.jsonl”")
    page.wait_for_selector("text=No files yet")


def test_an_adapter_is_merged_from_its_task_and_the_model_downloaded_and_deleted(visitor, tenant, database, storage):
    task = tenant.task(name="to be merged")
    with database.begin() as session:
        made = adapter(session, storage, jobs_of(session, task["id"])[0], FOLDER)
    page = visitor.open(f"/tasks/{task['id']}")
    page.click("#adapters summary")
    visitor.follow("text=Merge it", to="**/adapters/merged")
    (queued,) = tenant.get("/v1/merged-models").json()["data"]
    row = " ".join(page.text_content("#rows tr").split())
    assert row.startswith(f"{queued['id']}queuedsmall{made.id}about "), row
    with database.begin() as session:
        merged = session.get_one(MergedModel, queued["id"])
        merged.status, merged.files = READY, [file for file in made.manifest["files"] if file["path"].endswith(".safetensors")]
    page = visitor.open("/adapters/merged")
    page.click("text=Download…")
    with page.expect_download() as download:
        page.click("#rows >> text=adapter_model.safetensors")
    assert download.value.path().read_bytes() == FOLDER["adapter_model.safetensors"]
    page.click("summary:has-text('Delete')")
    visitor.follow("text=Delete it")
    page.wait_for_selector("text=No merged models yet")
    page = visitor.open("/adapters")
    page.click("summary:has-text('Merge')")
    visitor.follow("text=Merge it", to="**/adapters/merged")
    assert page.locator("#rows tr").count() == 1


def test_an_admin_sets_what_gpus_cost(admin_visitor, tenant):
    page = admin_visitor.open("/admin")
    page.fill("form[action='/admin/prices'] [name=device_type]", "A <b> type")
    page.fill("[name=per_hour]", "2.5")
    page.fill("input[type=date]", "2026-03-01")
    admin_visitor.follow("text=Set a price")
    page.wait_for_selector("tr:has-text('A <b> type') >> text=2.5")
    (price,) = tenant.get("/v1/prices").json()["data"]
    assert (price["device_type"], price["from_day"], price["per_hour"]) == ("A <b> type", "2026-03-01", 2.5)
    for wrong in ("plenty", "2,5"):
        page.fill("form[action='/admin/prices'] [name=device_type]", "A <b> type")
        page.fill("[name=per_hour]", wrong)
        admin_visitor.follow("text=Set a price")
        assert "per_hour" in page.text_content("main")
        admin_visitor.expected("422")
        admin_visitor.open("/admin")
    admin_visitor.follow("tr:has-text('A <b> type') >> text=Remove")
    page.wait_for_selector("tr:has-text('A <b> type')", state="detached")
    assert tenant.get("/v1/prices").json()["data"] == []


def test_an_admin_makes_a_tenant_its_quota_and_its_key(admin_visitor, tenant):
    page = admin_visitor.open("/admin")
    name = f"team {datetime.now(UTC).timestamp()}"
    page.fill("form[action='/admin/tenants'] [name=name]", name)
    admin_visitor.follow("text=Make a tenant")
    admin_visitor.follow(f"a:has-text('{name}')")
    page.fill("[name=running_gpus]", "4")
    admin_visitor.follow("text=Change")
    assert page.input_value("[name=running_gpus]") == "4"
    page.fill("[name=stored_bytes]", "plenty")
    admin_visitor.follow("text=Change")
    assert "stored_bytes" in page.text_content("main")
    admin_visitor.expected("422")
    with admin_visitor.leaving():
        page.go_back()
    for days in ("soon", "1e300", "0"):
        page.fill("[name=days]", days)
        admin_visitor.follow("text=Make a key")
        assert "days" in page.text_content("main")
        admin_visitor.expected("422")
        with admin_visitor.leaving():
            page.go_back()
    page.fill("[name=days]", "90")
    admin_visitor.follow("text=Make a key")
    secret = page.text_content("#secret")
    made = tenant.client.get("/v1/quotas", headers={"Authorization": f"Bearer {secret}"}).json()
    assert made["running_gpus"]["limit"] == 4
    admin_visitor.open("/admin")
    page.fill("[name=node_name]", "gpu-9")
    admin_visitor.follow("text=Make a join token")
    assert len(page.text_content("#secret")) > 20
    assert "create_join_token" in page.text_content("main")
