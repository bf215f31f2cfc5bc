"""Pages that follow the service while they are open."""

from tests.browser import eventually
from tests.service.api import chat_rows
from tests.service.web import sweeps


def test_an_opened_question_of_a_row_stays_open_while_the_list_follows_the_service(visitor, tenant):
    tenant.file()
    page = visitor.open("/files")
    page.click("#rows summary")
    page.locator("h1").click()  # what has the focus is not patched
    tenant.file(chat_rows(30))
    eventually(page, "document.querySelectorAll('#rows > tr').length === 2")
    assert page.locator("#rows details").evaluate_all("all => all.map((one) => one.open)").count(True) == 1


def test_a_list_that_was_empty_follows_the_service_too(visitor, tenant):
    page = visitor.open("/files")
    page.wait_for_selector("text=No files yet")
    file = tenant.file()
    page.wait_for_selector(f"#rows > #{file}")
    assert page.get_by_text("No files yet").count() == 0
    assert tenant.delete(f"/v1/files/{file}").status_code == 204
    page.wait_for_selector("text=No files yet")
    page = visitor.open("/tasks")
    page.wait_for_selector("text=No tasks yet")
    task = tenant.task(name="by the command line")["id"]
    page.check(f"#{task} input")
    page.locator("h1").click()
    later = tenant.task(name="and another")["id"]
    page.wait_for_selector(f"#{later}")
    assert page.is_checked(f"#{task} input"), "rows are patched one by one"


def test_a_page_of_a_key_that_only_reads_follows_its_task_after_a_refused_stream(visit, tenant, database, sweep):
    visitor = visit()
    visitor.sign_in(tenant.post("/v1/keys", json={"scopes": ["read"]}).json()["secret"])
    page = visitor.page
    page.route("**/events?*", lambda route: route.fulfill(status=503), times=1)
    with page.expect_response("**/events?*"):
        visitor.open(f"/tasks/{sweep}")
    with page.expect_request("**/events?*"):  # it asks again
        pass
    sweeps.go_on(database, sweep, 1, 41, 90)
    page.wait_for_selector("#job-rows tr:has-text('90/100')")
    visitor.expected("503")


def test_rows_that_hold_the_same_are_compared_without_copies(visitor, database, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    page.evaluate("""() => {
      const copy = Node.prototype.cloneNode;
      window.copies = 0;
      Node.prototype.cloneNode = function (deep) { window.copies += 1; return copy.call(this, deep); };
    }""")
    sweeps.go_on(database, sweep, 1, 41, 90)
    page.wait_for_selector("#job-rows tr:has-text('90/100')")
    assert page.evaluate("window.copies") == 0


def test_the_cluster_counts_a_node_that_joins_while_it_is_looked_at(nothing_left, visitor, new_node):
    page = visitor.open("/cluster")
    assert "No node is ready" in page.text_content("main")
    assert page.text_content("#node-count") == "0"
    new_node()
    page.wait_for_selector("#nodes tr:has-text('CPU')")
    assert page.text_content("#node-count") == "1"
    assert "No node is ready" not in page.text_content("main")
